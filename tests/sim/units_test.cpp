// SPDX-License-Identifier: Apache-2.0
#include "sim/units.hpp"

#include <gtest/gtest.h>

#include <type_traits>

namespace shardcheck::sim {
namespace {

template <class A, class B>
concept addable = requires(A a, B b) {
  a + b;
};
template <class A, class B>
concept divisible = requires(A a, B b) {
  a / b;
};
template <class A, class B>
concept multipliable = requires(A a, B b) {
  a* b;
};
template <class A, class B>
concept comparable = requires(A a, B b) {
  a < b;
};

static_assert(std::is_same_v<decltype(Bytes(1) / BytesPerSecond(1)), Seconds>);
static_assert(std::is_same_v<decltype(Bytes(1) / Seconds(1)), BytesPerSecond>);
static_assert(std::is_same_v<decltype(BytesPerSecond(1) * Seconds(1)), Bytes>);
static_assert(std::is_same_v<decltype(Flops(1) / FlopsPerSecond(1)), Seconds>);
static_assert(std::is_same_v<decltype(Seconds(1) / Seconds(1)), double>);
static_assert(addable<Seconds, Seconds> && !addable<Bytes, Seconds> && !addable<Bytes, double>);
static_assert(!addable<Bytes, Flops> && !addable<BytesPerSecond, FlopsPerSecond>);
static_assert(!multipliable<Bytes, Bytes> && !multipliable<Seconds, Seconds> &&
              !multipliable<Bytes, FlopsPerSecond>);
static_assert(!divisible<Bytes, Flops> && !divisible<double, Bytes> &&
              !divisible<Flops, BytesPerSecond>);
static_assert(comparable<Seconds, Seconds> && !comparable<Seconds, Bytes> &&
              !comparable<Seconds, double>);
static_assert(!std::is_convertible_v<double, Seconds> && !std::is_convertible_v<Bytes, Seconds>);

TEST(Units, ArithmeticIsThatOfTheNumbers) {
  EXPECT_EQ((Bytes(6e9) / BytesPerSecond(3e9)).value, 2.0);
  EXPECT_EQ((BytesPerSecond(3e9) * Seconds(2.0)).value, 6e9);
  EXPECT_DOUBLE_EQ((microseconds(3.0) + microseconds(5.0)).value, 8e-6);
  EXPECT_EQ(bytes(1'234'567).value, 1'234'567.0);
}

}  // namespace
}  // namespace shardcheck::sim
