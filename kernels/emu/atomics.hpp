// SPDX-License-Identifier: Apache-2.0
// CUDA's atomic functions, for the types that CUDA has them for. `address` is that of a View's element or of a shared
// one. Threads of a block take turns on one host thread, so plain reads and writes will do.
#pragma once

#include <type_traits>

#include "kernels/emu/shared_pointer.hpp"

namespace shardcheck::emu {

/// The type of the element at an address.
template <typename Address>
struct Pointee;
template <typename T>
struct Pointee<T*> {
  using type = T;
};
template <typename T>
struct Pointee<SharedPointer<T>> {
  using type = T;
};
template <typename Address>
using ElementAt = typename Pointee<Address>::type;

template <typename Address, typename... Types>
concept AddressOf = (std::is_same_v<ElementAt<Address>, Types> || ...);

/// Replaces the element by f(element); returns what it was.
template <typename T, typename F>
T change_at(T* address, F f, bool = true) {
  const T old = *address;
  *address = f(old);
  return old;
}
template <typename T, typename F>
T change_at(SharedPointer<T> address, F f, bool reads = true) {
  return address.change(f, reads);
}

/// a + b; integers wrap around.
template <typename T>
T wrapping_sum(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

template <typename A>
requires AddressOf<A, int, unsigned, unsigned long long, float, double> ElementAt<A> atomicAdd(
    A address, std::type_identity_t<ElementAt<A>> value) {
  return change_at(address, [value](auto old) { return wrapping_sum(old, value); });
}

template <typename A>
requires AddressOf<A, int, unsigned> ElementAt<A> atomicSub(A address,
                                                            std::type_identity_t<ElementAt<A>> value) {
  return change_at(address, [value](auto old) {
    return static_cast<ElementAt<A>>(static_cast<unsigned>(old) - static_cast<unsigned>(value));
  });
}

template <typename A>
requires AddressOf<A, int, unsigned, long long, unsigned long long> ElementAt<A> atomicMax(
    A address, std::type_identity_t<ElementAt<A>> value) {
  return change_at(address, [value](auto old) { return old < value ? value : old; });
}

template <typename A>
requires AddressOf<A, int, unsigned, long long, unsigned long long> ElementAt<A> atomicMin(
    A address, std::type_identity_t<ElementAt<A>> value) {
  return change_at(address, [value](auto old) { return value < old ? value : old; });
}

template <typename A>
requires AddressOf<A, int, unsigned, unsigned long long> ElementAt<A> atomicAnd(
    A address, std::type_identity_t<ElementAt<A>> value) {
  return change_at(address, [value](auto old) { return old & value; });
}

template <typename A>
requires AddressOf<A, int, unsigned, unsigned long long> ElementAt<A> atomicOr(
    A address, std::type_identity_t<ElementAt<A>> value) {
  return change_at(address, [value](auto old) { return old | value; });
}

template <typename A>
requires AddressOf<A, int, unsigned, unsigned long long> ElementAt<A> atomicXor(
    A address, std::type_identity_t<ElementAt<A>> value) {
  return change_at(address, [value](auto old) { return old ^ value; });
}

template <typename A>
requires AddressOf<A, int, unsigned, unsigned long long, float> ElementAt<A> atomicExch(
    A address, std::type_identity_t<ElementAt<A>> value) {
  return change_at(
      address, [value](auto) { return value; }, false);
}

template <typename A>
requires AddressOf<A, int, unsigned, unsigned short, unsigned long long> ElementAt<A> atomicCAS(
    A address, std::type_identity_t<ElementAt<A>> expected, std::type_identity_t<ElementAt<A>> value) {
  return change_at(address, [=](auto old) { return old == expected ? value : old; });
}

}  // namespace shardcheck::emu
