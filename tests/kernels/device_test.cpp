// SPDX-License-Identifier: Apache-2.0
// What the primitives refuse, on every kind of device, and the registry.
#include <gmock/gmock.h>

#include "kernels/meta/meta_device.hpp"
#include "tests/kernels/cpu_rig.hpp"

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
  Tensor t(std::int64_t rows, std::int64_t cols, DType dtype = DType::f32) {
    const Tensor tensor = device_->allocate(dtype, rows, cols);
    device_->poison(*stream_, tensor);
    return tensor;
  }

  std::unique_ptr<Device> device_ = builtin_devices().make(GetParam());
  std::unique_ptr<Stream> stream_ = device_->make_stream();
};

TEST_P(DeviceTest, MessagesNameThePrimitiveAndBothShapes) {
  const std::string message =
      refusal([&] { device_->linear(*stream_, t(5, 576), t(1536, 600), nullptr, t(5, 1536)); });
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
  const std::vector<std::pair<std::int64_t, std::int64_t>> owned = {{2, 5}}, backwards = {{5, 2}, {0, 6}};
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
  EXPECT_NE(refusal([&] { device_->attention_partial(s, t(3, 12), k, k, heads, shape, state); }), "");
  const AttentionState narrow{.max = t(2, 3), .sum = t(2, 2), .acc = t(2, 12)};
  EXPECT_NE(refusal([&] { device_->attention_partial(s, q, k, k, heads, shape, narrow); }), "");
  const AttentionState wide{.max = t(2, 3, DType::f64), .sum = t(2, 3, DType::f64), .acc = t(2, 12, DType::f64)};
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
  const auto elsewhere = builtin_devices().make(GetParam());
  const Tensor foreign = elsewhere->allocate(DType::f32, 2, 4);
  EXPECT_THAT(refusal([&] { device_->add(s, t(2, 4), foreign, t(2, 4)); }), HasSubstr("device"));
  EXPECT_NE(refusal([&] { device_->add(s, t(2, 4), Tensor{}, t(2, 4)); }), "");
  EXPECT_NE(refusal([&] { device_->linear(s, t(2, 4), t(3, 4, DType::bf16), nullptr, t(2, 3)); }), "");
  EXPECT_NE(refusal([&] { device_->add(s, t(2, 4), t(2, 4, DType::f16), t(2, 4)); }), "");
  EXPECT_NE(refusal([&] { device_->cast(s, t(2, 4, DType::i64), t(2, 4)); }), "");
  EXPECT_NE(refusal([&] { device_->copy(s, t(2, 4, DType::bf16), t(2, 4, DType::f16)); }), "");
  const auto half = RopeConvention::half_split;
  const DType bf16 = DType::bf16;
  EXPECT_NE(refusal([&] { device_->rope(s, t(2, 8, bf16), t(2, 2, bf16), t(2, 2, bf16), 4, half, t(2, 8, bf16)); }),
            "");
}

TEST_P(DeviceTest, StatesItsArithmetic) {
  for (const DType dtype : kStorageDTypes) {
    const Arithmetic a = device_->arithmetic(Primitive::linear, dtype);
    EXPECT_EQ(a.accumulate, dtype == DType::f64 ? DType::f64 : DType::f32);
    EXPECT_EQ(std::exp2(-a.fraction_bits), unit_roundoff(a.accumulate));
    EXPECT_FALSE(a.truncating);
    EXPECT_EQ(a.block_k, 0);
    EXPECT_FALSE(a.rounds_softmax_weights);
  }
}

INSTANTIATE_TEST_SUITE_P(Kind, DeviceTest, testing::Values("cpu", "meta"),
                         [](const auto& test) { return test.param; });

TEST(MetaDevice, HasShapesButNoValues) {
  const auto device = make_meta_device();
  const auto stream = device->make_stream();
  EXPECT_FALSE(device->has_values());
  const Tensor huge = device->allocate(DType::f32, std::int64_t{1} << 30, std::int64_t{1} << 20);  // 4 PiB
  EXPECT_EQ(huge.storage, nullptr);
  const Tensor x = device->allocate(DType::f32, 2, huge.cols), out = device->allocate(DType::f32, 2, huge.rows);
  device->linear(*stream, x, huge, nullptr, out);
  EXPECT_THROW(device->to_host(*stream, out), std::logic_error);
  const HostTensor host(DType::bf16, {3, 5});
  const Tensor adopted = device->adopt(*stream, host);
  EXPECT_EQ(adopted.rows, 3);
  EXPECT_EQ(adopted.cols, 5);
  EXPECT_EQ(adopted.dtype, DType::bf16);
}

TEST(DeviceRegistry, NamesItsKinds) {
  DeviceRegistry devices = builtin_devices();
  EXPECT_EQ(devices.kinds(), (std::vector<std::string>{"cpu", "meta"}));
  EXPECT_EQ(devices.make("cpu")->kind(), "cpu");
  try {
    devices.make("cuba");
    FAIL() << "an unknown kind was made";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cpu, meta"));
  }
  devices.add("mine", [] { return make_cpu_device(); });
  EXPECT_EQ(devices.make("mine")->kind(), "cpu");
}

}  // namespace
}  // namespace shardcheck
