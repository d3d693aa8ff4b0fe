// SPDX-License-Identifier: Apache-2.0
// The same numbers in, the same bits out: of single linears whatever else is in memory or in flight, and of whole runs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "harness/inputs.hpp"
#include "harness/run.hpp"
#include "harness/verify.hpp"
#include "model/model.hpp"
#include "sharded/plan.hpp"
#include "sharded/runner.hpp"
#include "tests/comm/ranks.hpp"
#include "tests/gpu/gpu_kind.hpp"

namespace shardcheck::testing {
namespace {

class GpuRepeats : public ::testing::TestWithParam<DType> {
 protected:
  /// The tensor at `inset` rows and columns inside a larger one: other addresses, alignments and strides.
  Tensor put(const HostTensor& host, std::int64_t inset) {
    const Tensor whole = device_->allocate(*stream_, host.dtype(), host.rows() + inset,
                                           host.cols() + inset);
    device_->poison(*stream_, whole);
    const Tensor tensor = whole.row_range(inset, whole.rows).col_range(inset, whole.cols);
    device_->upload(*stream_, host, tensor);
    return tensor;
  }

  std::unique_ptr<Device> device_ = builtin_devices().make(gpu_kind());
  std::unique_ptr<Stream> stream_ = device_->make_stream();
};

TEST_P(GpuRepeats, LinearWhateverItsMemory) {
  struct Shape {
    std::int64_t m, k, n;
  };
  std::vector<Shape> shapes = {{1, 64, 96}, {5, 67, 33}, {17, 130, 40}};
  if (gpu_kind() != "emu")
    shapes.insert(shapes.end(), {{1, 4096, 4096}, {33, 8192, 1024}, {512, 576, 1536}});
  for (const auto& [m, k, n] : shapes) {
    const HostTensor x = varied(GetParam(), m, k, 1), weight = varied(GetParam(), n, k, 2);
    const HostTensor bias = varied(GetParam(), 1, n, 3);
    HostTensor first;
    for (int run = 0; run < 12; ++run) {
      const std::int64_t inset = run % 4;
      const Tensor b = put(bias, inset);
      const Tensor out = put(HostTensor(GetParam(), {m, n}), inset);
      device_->linear(*stream_, put(x, inset), put(weight, (run + 1) % 3),
                      run % 2 == 0 ? &b : nullptr, out);
      if (run % 2 == 1) device_->bias(*stream_, out, b, put(HostTensor(GetParam(), {m, n}), 0));
      if (run % 2 == 1) continue;  // only what else is in flight
      const HostTensor result = device_->to_host(*stream_, out);
      if (run == 0) first = result;
      ASSERT_TRUE(result.bitwise_equal(first))
          << fmt::format("[{}, {}] x [{}, {}], run {}", m, k, n, k, run);
    }
    // One input that differs in its last bit is seen; in 16 bits its effect may be rounded away.
    if (GetParam() != DType::f32) continue;
    HostTensor changed = varied(GetParam(), m, k, 1);
    changed.mutable_data()[0] ^= std::byte{1};
    const Tensor b = put(bias, 0), out = put(HostTensor(GetParam(), {m, n}), 0);
    device_->linear(*stream_, put(changed, 0), put(weight, 0), &b, out);
    EXPECT_FALSE(device_->to_host(*stream_, out).bitwise_equal(first));
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, GpuRepeats, ::testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& test) { return std::string(name(test.param)); });

TapRun run_once(const Model& model, const VerifyParts& parts, int ranks, DType dtype, Phase phase) {
  const Mesh mesh{{{"tp", ranks}}};
  const Program program = build_program(model, resolve(load_plan("megatron"), model, mesh), parts.ops);
  const RunSettings settings{dtype, dtype, {}};
  InputOptions inputs;
  inputs.lengths = {9, 5};
  inputs.decode_steps = 3;
  const Program* const only = &program;
  const Sequences sequences = make_sequences(inputs, model.config(), {&only, 1});
  const std::vector<Step> steps = phase == Phase::prefill ? prefill_steps(sequences, 0)
                                                          : decode_steps(sequences, inputs);
  WeightStore weights(model, dtype);
  TapCollector collector(program, settings, steps);
  RunOptions options;
  options.taps = &collector;
  options.check_wiring = true;
  const auto device = parts.devices.make(gpu_kind());
  Device* const one = device.get();
  const auto world = parts.worlds.make("threads", mesh);
  const RunResult result = run_program(program, *world, {&one, 1}, weights, settings, steps, options);
  EXPECT_TRUE(result.wiring.empty());
  EXPECT_GT(result.wiring_checks, 0);
  return collector.release();
}

/// Bytes of all taps of all ranks and steps, compared with another run's.
void expect_same_taps(const TapRun& again, const TapRun& first, const std::string& what) {
  ASSERT_EQ(again.steps.size(), first.steps.size()) << what;
  std::size_t compared = 0;
  for (std::size_t step = 0; step < first.steps.size(); ++step) {
    ASSERT_EQ(again.steps[step].values.size(), first.steps[step].values.size()) << what;
    for (const TapValue& value : first.steps[step].values) {
      const TapValue* const other = again.steps[step].find(value.name);
      ASSERT_NE(other, nullptr) << what << ' ' << value.name;
      for (std::size_t rank = 0; rank < value.ranks.size(); ++rank) {
        ASSERT_TRUE(other->ranks[rank].bitwise_equal(value.ranks[rank]))
            << what << ": " << value.name << " on rank " << rank << " of step " << step;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 0u) << what;
}

class GpuRunRepeats : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuRunRepeats, EveryTapHasTheSameBits) {
  const VerifyParts parts = builtin_parts();
  const Model model = load_model(GetParam());
  for (const int ranks : {1, 4}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const Phase phase : {Phase::prefill, Phase::decode}) {
        const std::string what = fmt::format("tp {} {} {}", ranks, name(dtype), name(phase));
        const TapRun first = run_once(model, parts, ranks, dtype, phase);
        for (int again = 0; again < 2; ++again) {
          expect_same_taps(run_once(model, parts, ranks, dtype, phase), first, what);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GpuRunRepeats, ::testing::Values("tiny-llama", "tiny-gpt2"),
                         [](const auto& test) { return test.index == 0 ? "llama" : "gpt2"; });

}  // namespace
}  // namespace shardcheck::testing
