// SPDX-License-Identifier: Apache-2.0
// The field itself, its random functions, the names of their sites and their counts, against naive twins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>
#include <thread>

#include "kernels/cpu/cpu_device.hpp"
#include "kernels/field/sites.hpp"
#include "tests/kernels/field_rig.hpp"

namespace shardcheck {
namespace {

using field::Function;
using field::Hash;
using field::inverse;
using field::kPrime;
using field::Residue;
using field::Wide;

/// The twin: what a textbook writes. A residue from any word, and the edges more often than chance would.
std::uint64_t modulo(Wide x) { return static_cast<std::uint64_t>(x % kPrime); }

Residue any() {
  const auto word = *rc::gen::oneOf(
      rc::gen::arbitrary<std::uint64_t>(),
      rc::gen::element<std::uint64_t>(0, 1, 2, kPrime - 2, kPrime - 1, kPrime / 2));
  return {word % kPrime};
}

RC_GTEST_PROP(FieldArithmetic, SumDifferenceAndProductAreTheTwins, ()) {
  const Residue a = any(), b = any();
  RC_ASSERT((a + b).bits == modulo(Wide{a.bits} + b.bits));
  RC_ASSERT((a - b).bits == modulo(Wide{a.bits} + kPrime - b.bits));
  RC_ASSERT((a * b).bits == modulo(Wide{a.bits} * b.bits));
}

RC_GTEST_PROP(FieldArithmetic, ReducesEveryWideInteger, (std::uint64_t high, std::uint64_t low)) {
  const Wide wide = (Wide{high} << 64) + low;
  RC_ASSERT(field::reduce(wide) == modulo(wide));
}

TEST(FieldArithmetic, ReducesTheEdges) {
  for (const Wide wide :
       {Wide{0}, Wide{kPrime}, Wide{kPrime} - 1, Wide{kPrime} * 2, Wide{kPrime} * kPrime, ~Wide{0},
        (Wide{1} << 122) - 1, (Wide{kPrime} << 61) + kPrime, (Wide{kPrime} << 61) + kPrime + 1}) {
    EXPECT_EQ(field::reduce(wide), modulo(wide));
  }
}

RC_GTEST_PROP(FieldArithmetic, IsAField, ()) {
  const Residue a = any(), b = any(), c = any(), zero{0}, one{1};
  RC_ASSERT((a + b) + c == a + (b + c));
  RC_ASSERT((a * b) * c == a * (b * c));
  RC_ASSERT(a * (b + c) == a * b + a * c);
  RC_ASSERT(a + b == b + a);
  RC_ASSERT(a * b == b * a);
  RC_ASSERT(a + zero == a);
  RC_ASSERT(a * one == a);
  RC_ASSERT(a - a == zero);
  if (a != zero) RC_ASSERT(a * inverse(a) == one);
}

RC_GTEST_PROP(FieldArithmetic, DividesByACount, ()) {
  const auto n = *rc::gen::inRange<std::int64_t>(1, 1 << 20);
  const Residue a = any();
  Residue sum;
  for (std::int64_t i = 0; i < n % 100 + 1; ++i) sum = sum + a;
  RC_ASSERT(sum * inverse(field::count(n % 100 + 1)) == a);
  RC_ASSERT(a * field::count(n) * inverse(field::count(n)) == a);
}

TEST(FieldArithmetic, PoisonSpreadsAndZeroHasNoInverse) {
  const Residue a{5}, poison = field::kPoisoned;
  Hash hash(1, "exp", "here");
  for (const Residue result :
       {a + poison, poison + a, a - poison, poison - a, a * poison, poison * Residue{0},
        inverse(poison), inverse(Residue{0}), hash(poison)}) {
    EXPECT_EQ(result.bits, field::kPoison);
  }
  EXPECT_EQ(std::max(a, poison), poison);
  EXPECT_TRUE(Residue{kPrime}.poisoned());  // not canonical: a fault in what made it
}

TEST(FieldHash, IsOneFunctionPerSeedNameAndSite) {
  std::set<std::uint64_t> seen;
  for (const std::uint64_t seed : {0u, 1u, 2u}) {
    for (const char* function : {"exp", "log"}) {
      for (const char* site : {"", "a", "ab", "layers.0.mlp", "layers.1.mlp"}) {
        Hash hash(seed, function, site), again(seed, function, site);
        for (std::uint64_t x = 0; x < 100; ++x) {
          const Residue value = hash(Residue{x});
          EXPECT_LT(value.bits, kPrime);
          EXPECT_EQ(value, again(Residue{x}));
          EXPECT_TRUE(seen.insert(value.bits).second) << "two arguments met";
        }
        EXPECT_EQ(hash.calls(), 100);
      }
    }
  }
  EXPECT_NE(Hash(1, "ab", "c").at(7), Hash(1, "a", "bc").at(7));
}

/// No linear relation that a program could lean on: f(a + b) is not f(a) + f(b), nor f(a) f(b).
RC_GTEST_PROP(FieldHash, KeepsNoStructure, ()) {
  const Residue a = any(), b = any();
  Hash f(3, "exp", "site");
  RC_ASSERT(f(a + b) != f(a) + f(b));
  RC_ASSERT(f(a + b) != f(a) * f(b));
}

TEST(FieldHash, BitsAreEven) {
  Hash f(9, "exp", "site");
  const int n = 1 << 14;
  for (int bit = 0; bit < 61; ++bit) {
    int ones = 0;
    for (int x = 0; x < n; ++x)
      ones += static_cast<int>((f(Residue{static_cast<std::uint64_t>(x)}).bits >> bit) & 1u);
    EXPECT_NEAR(ones, n / 2, 5 * 64) << bit;  // five standard deviations of n fair coins
  }
}

TEST(FieldHash, ConstantsAreToldByTheirBits) {
  const field::Givens givens(4), others(5);
  EXPECT_EQ(givens.constant(0.125), givens.constant(0.125));
  EXPECT_NE(givens.constant(1e-5), givens.constant(1e-6));
  EXPECT_EQ(givens.sine(0.0), givens.sine(-0.0));
  EXPECT_NE(givens.sine(0.5), givens.cosine(0.5));
  EXPECT_NE(givens.sine(0.5), others.sine(0.5));
}

TEST(FieldSites, StagesOfAValueAreOnePlace) {
  for (const char* name :
       {"layers.0.mlp", "layers.0.mlp.partial", "layers.0.mlp.reduced", "layers.0.mlp.reduced.12"}) {
    EXPECT_EQ(field::logical_site(name), "layers.0.mlp") << name;
  }
  for (const char* name :
       {"layers.12", "", "7", "layers.0.partially", "layers.partial.7", "partial", "reduced.1"}) {
    EXPECT_EQ(field::logical_site(name), name);
  }
}

TEST(FieldSites, TheInnerRangeOfTheThreadCounts) {
  FieldDevice device(1);
  EXPECT_EQ(field::current_site(), "");
  const NamedRange outer = device.range("outer.partial");
  {
    const NamedRange inner = device.range("inner");
    EXPECT_EQ(field::current_site(), "inner");
    std::thread([] { EXPECT_EQ(field::current_site(), ""); }).join();
  }
  EXPECT_EQ(field::current_site(), "outer");
}

TEST(FieldSites, AValueDependsOnThePlaceAndNotOnTheRank) {
  FieldRig rig(11);
  const Residues x = random_residues(2, 7, 1);
  const auto at = [&](const char* site) {
    Residues result;
    std::thread([&] {
      const auto stream = rig.device().make_stream();
      const NamedRange named = rig.device().range(site);
      result = rig.unary(UnaryKind::silu, rig.put(x));
    }).join();
    return result;
  };
  EXPECT_EQ(at("layers.1.mlp"), at("layers.1.mlp"));
  EXPECT_EQ(at("layers.1.mlp"), at("layers.1.mlp.partial"));
  EXPECT_NE(at("layers.1.mlp"), at("layers.2.mlp"));
}

TEST(FieldCounts, CallsAndDegreePerSite) {
  FieldRig rig;
  const Tensor x = rig.put(random_residues(3, 5, 1)), square = rig.put(random_residues(5, 5, 2));
  const Tensor w = rig.put(random_residues(1, 5, 3));
  {
    const NamedRange named = rig.device().range("a");
    rig.rms_norm(x, w);
    rig.linear(x, square);
    rig.unary(UnaryKind::gelu_tanh, x);
  }
  {
    const NamedRange named = rig.device().range("b");
    const std::vector<std::int32_t> heads{0};
    rig.finish(rig.attend(x, x, x, heads, {.head_dim = 5, .scale = 0.5}), 5);
    rig.unary(UnaryKind::silu, x);
  }
  const std::vector<field::SiteCount> sites = rig.device().counts().sites();
  ASSERT_EQ(sites.size(), 4u);
  const auto expect = [&](std::size_t i, const char* site, Function f, std::int64_t calls,
                          std::int64_t degree) {
    EXPECT_EQ(sites[i].site, site);
    EXPECT_EQ(sites[i].function, f);
    EXPECT_EQ(sites[i].calls, calls) << i;
    EXPECT_EQ(sites[i].degree, degree) << i;
  };
  expect(0, "a", Function::rsqrt, 3, 4);
  expect(1, "a", Function::phi, 15, 8);
  expect(2, "b", Function::exp, 1 + 2 + 3 + 3, 8);  // causal scores and the maximum of each query
  expect(3, "b", Function::sigmoid, 15, 8 + 2 * 2);
  EXPECT_DOUBLE_EQ(field::chance(sites), (9.0 * 4 + 225 * 8 + 81 * 8 + 225 * 12) * 0x1p-61);
}

TEST(FieldCounts, AddUpOverThreads) {
  FieldDevice device(1);
  const auto rank = [&] {
    const auto stream = device.make_stream();
    const NamedRange named = device.range("site");
    const Tensor x = device.allocate(*stream, DType::field, 4, 4),
                 out = device.allocate(*stream, DType::field, 4, 4);
    device.poison(*stream, x);
    for (int i = 0; i < 100; ++i) device.unary(*stream, UnaryKind::silu, x, out);
  };
  std::thread one(rank), two(rank);
  one.join();
  two.join();
  ASSERT_EQ(device.counts().sites().size(), 1u);
  EXPECT_EQ(device.counts().sites()[0].calls, 2 * 100 * 16);
}

TEST(FieldDType, OnlyTheFieldComputesInIt) {
  EXPECT_EQ(element_size(DType::field), 8u);
  EXPECT_FALSE(is_float(DType::field));
  EXPECT_EQ(accumulate_dtype(DType::field), DType::field);
  EXPECT_THROW(unit_roundoff(DType::field), std::logic_error);
  EXPECT_THROW(HostTensor(DType::field, {1, 1}).to_f64(), std::logic_error);
  const auto cpu = make_cpu_device();
  FieldDevice field(1);
  for (const auto& [device, dtype] : {std::pair<Device*, DType>{cpu.get(), DType::field},
                                      std::pair<Device*, DType>{&field, DType::f32}}) {
    const auto stream = device->make_stream();
    const Tensor x = device->allocate(*stream, dtype, 2, 2);
    EXPECT_THROW(device->add(*stream, x, x, x), ShapeError);
    device->copy(*stream, x, device->allocate(*stream, dtype, 2, 2));
  }
}

}  // namespace
}  // namespace shardcheck
