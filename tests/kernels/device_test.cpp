// SPDX-License-Identifier: Apache-2.0
// What the primitives refuse, on the device under test and on meta.
#include <gmock/gmock.h>

#include "kernels/meta/meta_device.hpp"
#include "tests/kernels/device_rig.hpp"

namespace shardcheck {
namespace {

using testing::HasSubstr;

template <typename Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const ShapeError& error) {
    return error.what();
  }
  return "";
}

class DeviceTest : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Device> make() {
    return GetParam() == "meta" ? make_meta_device() : make_test_device();
  }

  Tensor t(std::int64_t rows, std::int64_t cols, DType dtype = DType::f32) {
    const Tensor tensor = device_->allocate(*stream_, dtype, rows, cols);
    device_->poison(*stream_, tensor);
    return tensor;
  }

  std::unique_ptr<Device> device_ = make();
  std::unique_ptr<Stream> stream_ = device_->make_stream();
};

TEST_P(DeviceTest, MessagesNameThePrimitiveAndBothShapes) {
  const std::string message = refusal(
      [&] { device_->linear(*stream_, t(5, 576), t(1536, 600), nullptr, t(5, 1536)); });
  EXPECT_THAT(message, HasSubstr("linear"));
  EXPECT_THAT(message, HasSubstr("f32 [5, 576]"));
  EXPECT_THAT(message, HasSubstr("f32 [1536, 600]"));
}

TEST_P(DeviceTest, WrongShapesAreRefused) {
  Stream& s = *stream_;
  const Tensor bias = t(1, 6);
  device_->linear(s, t(2, 4), t(3, 4), nullptr, t(2, 3));
  EXPECT_NE(refusal([&] { device_->linear(s, t(2, 4), t(3, 4), nullptr, t(2, 4)); }), "");
  EXPECT_NE(refusal([&] { device_->linear(s, t(2, 4), t(3, 4), &bias, t(2, 3)); }), "");
  device_->rms_norm(s, t(2, 4), t(1, 4), 1e-5, t(2, 4));
  EXPECT_NE(refusal([&] { device_->rms_norm(s, t(2, 4), t(1, 5), 1e-5, t(2, 4)); }), "");
  EXPECT_NE(refusal([&] { device_->rms_norm(s, t(2, 4), t(1, 4), 1e-5, t(3, 4)); }), "");
  device_->layer_norm(s, t(2, 4), t(1, 4), t(1, 4), 1e-5, t(2, 4));
  EXPECT_NE(refusal([&] { device_->layer_norm(s, t(2, 4), t(1, 4), t(2, 4), 1e-5, t(2, 4)); }), "");
  const auto half = RopeConvention::half_split;
  device_->rope(s, t(2, 8), t(2, 2), t(2, 2), 4, half, t(2, 8));
  EXPECT_NE(refusal([&] { device_->rope(s, t(2, 8), t(2, 2), t(2, 2), 3, half, t(2, 8)); }), "");
  EXPECT_NE(refusal([&] { device_->rope(s, t(2, 8), t(1, 2), t(1, 2), 4, half, t(2, 8)); }), "");
  EXPECT_NE(refusal([&] { device_->rope(s, t(2, 9), t(2, 2), t(2, 2), 4, half, t(2, 9)); }), "");
  device_->gate(s, t(2, 4), t(2, 4), t(2, 4));
  EXPECT_NE(refusal([&] { device_->gate(s, t(2, 4), t(2, 5), t(2, 4)); }), "");
  EXPECT_NE(refusal([&] { device_->unary(s, UnaryKind::silu, t(2, 4), t(4, 2)); }), "");
  device_->add(s, t(2, 4), t(2, 4), t(2, 4));
  EXPECT_NE(refusal([&] { device_->add(s, t(2, 4), t(1, 4), t(2, 4)); }), "");
  EXPECT_NE(refusal([&] { device_->bias(s, t(2, 4), t(1, 3), t(2, 4)); }), "");
  EXPECT_NE(refusal([&] { device_->cast(s, t(2, 4), t(2, 3)); }), "");
  device_->copy(s, t(2, 4), t(2, 4));
  EXPECT_NE(refusal([&] { device_->copy(s, t(2, 4), t(2, 3)); }), "");
  EXPECT_NE(refusal([&] { device_->upload(s, HostTensor(DType::f32, {4, 2}), t(2, 4)); }), "");
  EXPECT_NE(refusal([&] { device_->adopt(s, HostTensor(DType::f32, {2, 4, 3})); }), "");
}

TEST_P(DeviceTest, WrongEmbeddingsAreRefused) {
  Stream& s = *stream_;
  const std::vector<std::pair<std::int64_t, std::int64_t>> owned = {{2, 5}},
                                                           backwards = {{5, 2}, {0, 6}};
  const Tensor ids = t(1, 4, DType::i64);
  device_->embedding(s, ids, t(3, 8), owned, t(4, 8));
  EXPECT_NE(refusal([&] { device_->embedding(s, ids, t(4, 8), owned, t(4, 8)); }), "");
  EXPECT_NE(refusal([&] { device_->embedding(s, ids, t(3, 8), backwards, t(4, 8)); }), "");
  EXPECT_NE(refusal([&] { device_->embedding(s, ids, t(3, 8), owned, t(3, 8)); }), "");
  EXPECT_NE(refusal([&] { device_->embedding(s, t(1, 4), t(3, 8), owned, t(4, 8)); }), "");
}

TEST_P(DeviceTest, WrongAttentionIsRefused) {
  Stream& s = *stream_;
  const std::vector<std::int32_t> heads = {0, 0, 1}, outside = {0, 0, 2};
  const AttentionShape shape{.head_dim = 4, .scale = 0.5};
  const AttentionState state{.max = t(2, 3), .sum = t(2, 3), .acc = t(2, 12)};
  const Tensor q = t(2, 12), k = t(5, 8);
  device_->attention_partial(s, q, k, k, heads, shape, state);
  EXPECT_NE(refusal([&] { device_->attention_partial(s, q, k, k, outside, shape, state); }), "");
  EXPECT_NE(refusal([&] { device_->attention_partial(s, t(2, 8), k, k, heads, shape, state); }), "");
  EXPECT_NE(refusal([&] { device_->attention_partial(s, q, k, t(4, 8), heads, shape, state); }), "");
  EXPECT_NE(refusal([&] { device_->attention_partial(s, t(3, 12), k, k, heads, shape, state); }),
            "");
  const AttentionState narrow{.max = t(2, 3), .sum = t(2, 2), .acc = t(2, 12)};
  EXPECT_NE(refusal([&] { device_->attention_partial(s, q, k, k, heads, shape, narrow); }), "");
  const AttentionState wide{
      .max = t(2, 3, DType::f64), .sum = t(2, 3, DType::f64), .acc = t(2, 12, DType::f64)};
  EXPECT_NE(refusal([&] { device_->attention_partial(s, q, k, k, heads, shape, wide); }), "");
  device_->attention_finish(s, state, 4, t(2, 12));
  EXPECT_NE(refusal([&] { device_->attention_finish(s, state, 3, t(2, 12)); }), "");
  EXPECT_NE(refusal([&] { device_->attention_finish(s, state, 4, t(2, 9)); }), "");
  const AttentionState other{.max = t(3, 3), .sum = t(3, 3), .acc = t(3, 12)};
  device_->attention_merge(s, state, state);
  EXPECT_NE(refusal([&] { device_->attention_merge(s, other, state); }), "");
}

TEST_P(DeviceTest, WrongReductionsAreRefused) {
  Stream& s = *stream_;
  const std::vector<Tensor> terms = {t(2, 4), t(2, 4)}, mixed = {t(2, 4), t(2, 4, DType::bf16)};
  const std::vector<Tensor> strided = {t(2, 6).col_range(0, 4), t(2, 4)};
  device_->reduce_n(s, terms, {}, 8, 16, t(2, 4));
  EXPECT_NE(refusal([&] { device_->reduce_n(s, terms, {}, 9, 16, t(2, 4)); }), "");
  EXPECT_NE(refusal([&] { device_->reduce_n(s, terms, {}, 0, 8, t(1, 8)); }), "");
  EXPECT_NE(refusal([&] { device_->reduce_n(s, mixed, {}, 0, 8, t(2, 4)); }), "");
  EXPECT_NE(refusal([&] { device_->reduce_n(s, strided, {}, 0, 8, t(2, 4)); }), "");
  EXPECT_NE(refusal([&] { device_->reduce_n(s, {}, {}, 0, 8, t(2, 4)); }), "");
}

TEST_P(DeviceTest, WrongDTypesAndDevicesAreRefused) {
  Stream& s = *stream_;
  const auto elsewhere = make();
  const auto its_stream = elsewhere->make_stream();
  const Tensor foreign = elsewhere->allocate(*its_stream, DType::f32, 2, 4);
  EXPECT_THAT(refusal([&] { device_->add(s, t(2, 4), foreign, t(2, 4)); }), HasSubstr("device"));
  EXPECT_NE(refusal([&] { device_->add(s, t(2, 4), Tensor{}, t(2, 4)); }), "");
  EXPECT_NE(refusal([&] { device_->linear(s, t(2, 4), t(3, 4, DType::bf16), nullptr, t(2, 3)); }),
            "");
  EXPECT_NE(refusal([&] { device_->add(s, t(2, 4), t(2, 4, DType::f16), t(2, 4)); }), "");
  EXPECT_NE(refusal([&] { device_->cast(s, t(2, 4, DType::i64), t(2, 4)); }), "");
  EXPECT_NE(refusal([&] { device_->copy(s, t(2, 4, DType::bf16), t(2, 4, DType::f16)); }), "");
  const auto half = RopeConvention::half_split;
  const DType bf16 = DType::bf16;
  EXPECT_NE(refusal([&] {
              device_->rope(s, t(2, 8, bf16), t(2, 2, bf16), t(2, 2, bf16), 4, half, t(2, 8, bf16));
            }),
            "");
}

TEST_P(DeviceTest, WrongPartsOfANormAreRefused) {
  Stream& s = *stream_;
  const DType bf16 = DType::bf16;
  device_->square_sum(s, t(3, 4), t(3, 1));
  EXPECT_NE(refusal([&] { device_->square_sum(s, t(3, 4), t(2, 1)); }), "");
  EXPECT_NE(refusal([&] { device_->square_sum(s, t(3, 4), t(3, 2)); }), "");
  device_->square_sum(s, t(3, 4, bf16), t(3, 1));
  EXPECT_NE(refusal([&] { device_->square_sum(s, t(3, 4, bf16), t(3, 1, bf16)); }), "");
  device_->rms_apply(s, t(3, 4), t(1, 4), t(3, 1), 8, 1e-5, t(3, 4));
  EXPECT_NE(refusal([&] { device_->rms_apply(s, t(3, 4), t(1, 8), t(3, 1), 8, 1e-5, t(3, 4)); }), "");
  EXPECT_NE(refusal([&] { device_->rms_apply(s, t(3, 4), t(1, 4), t(4, 1), 8, 1e-5, t(3, 4)); }), "");
  EXPECT_NE(refusal([&] { device_->rms_apply(s, t(3, 4), t(1, 4), t(3, 1), 8, 1e-5, t(3, 8)); }), "");
  EXPECT_THAT(refusal([&] { device_->rms_apply(s, t(3, 4), t(1, 4), t(3, 1), 3, 1e-5, t(3, 4)); }),
              HasSubstr("here 3"));
  EXPECT_NE(refusal([&] {
              device_->rms_apply(s, t(3, 4, bf16), t(1, 4, bf16), t(3, 1, bf16), 8, 1e-5, t(3, 4, bf16));
            }),
            "");
}

TEST_P(DeviceTest, WrongVocabularyWorkIsRefused) {
  Stream& s = *stream_;
  const DType i64 = DType::i64;
  const std::vector<std::pair<std::int64_t, std::int64_t>> owned = {{2, 5}, {7, 8}};
  device_->add_rms_norm(s, t(2, 4), t(2, 4), t(1, 4), 1e-5, t(2, 4), t(2, 4));
  EXPECT_NE(
      refusal([&] { device_->add_rms_norm(s, t(2, 4), t(2, 4), t(1, 5), 1e-5, t(2, 4), t(2, 4)); }),
      "");
  EXPECT_NE(
      refusal([&] { device_->add_rms_norm(s, t(2, 4), t(2, 4), t(1, 4), 1e-5, t(2, 3), t(2, 4)); }),
      "");
  device_->argmax(s, t(3, 4), owned, t(3, 1), t(3, 1, i64));
  EXPECT_NE(refusal([&] { device_->argmax(s, t(3, 5), owned, t(3, 1), t(3, 1, i64)); }), "");
  EXPECT_NE(refusal([&] { device_->argmax(s, t(3, 4), owned, t(2, 1), t(3, 1, i64)); }), "");
  EXPECT_NE(refusal([&] { device_->argmax(s, t(3, 4), owned, t(3, 1), t(3, 1)); }), "");
  EXPECT_NE(refusal([&] {
              device_->argmax(s, t(3, 4, DType::bf16), owned, t(3, 1, DType::bf16), t(3, 1, i64));
            }),
            "");
  const CrossEntropyState state{.max = t(3, 1), .sum = t(3, 1), .target = t(3, 1)};
  const CrossEntropyState wide{.max = t(3, 1), .sum = t(3, 2), .target = t(3, 1)};
  const CrossEntropyState other{.max = t(2, 1), .sum = t(2, 1), .target = t(2, 1)};
  device_->cross_entropy_partial(s, t(3, 4), t(1, 3, i64), owned, state);
  EXPECT_NE(
      refusal([&] { device_->cross_entropy_partial(s, t(3, 5), t(1, 3, i64), owned, state); }), "");
  EXPECT_NE(
      refusal([&] { device_->cross_entropy_partial(s, t(3, 4), t(1, 4, i64), owned, state); }), "");
  EXPECT_NE(refusal([&] { device_->cross_entropy_partial(s, t(3, 4), t(1, 3), owned, state); }), "");
  EXPECT_NE(refusal([&] { device_->cross_entropy_partial(s, t(3, 4), t(1, 3, i64), owned, wide); }),
            "");
  device_->cross_entropy_merge(s, state, state);
  EXPECT_NE(refusal([&] { device_->cross_entropy_merge(s, other, state); }), "");
  device_->cross_entropy_finish(s, state, t(3, 1));
  EXPECT_NE(refusal([&] { device_->cross_entropy_finish(s, state, t(3, 1, DType::f64)); }), "");
}

INSTANTIATE_TEST_SUITE_P(Kind, DeviceTest, testing::Values("under_test", "meta"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace shardcheck
