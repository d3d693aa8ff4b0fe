// SPDX-License-Identifier: Apache-2.0
// SHARED_ARRAY and DYNAMIC_SHARED for kernels on the CPU: the name is a SharedPointer whose [] checks every access.
//
// What a kernel may do with it also compiles with CUDA's arrays: name[i] read, assigned, +=; `name + n` and `&name[n]`
// kept in an `auto`; either passed to a __device__ template as a value of its own type; atomics on `&name[i]`.
// An element is read into a value of its type: `const float x = name[i]` (a member of a struct only from there).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

#include "kernels/emu/operations.hpp"

/// `name`: `count` (a constant) elements of `type`, shared by the block.
#define SHARED_ARRAY(type, name, count)                                                           \
  static constexpr char name##_shared_site = 0;                                                   \
  const ::shardcheck::emu::SharedPointer<type> name =                                             \
      ::shardcheck::emu::shared_array<type, static_cast<std::size_t>(count)>(&name##_shared_site, \
                                                                             #name)
/// `name`: elements of `type`, as many as fit Launch::shared_bytes. One per kernel.
#define DYNAMIC_SHARED(type, name) \
  const ::shardcheck::emu::SharedPointer<type> name = ::shardcheck::emu::shared_rest<type>(#name)

namespace shardcheck::emu {

template <typename T>
class SharedPointer;

/// name[i]: to be read or written at once, hence the &&: `auto x = name[i]` would read whenever x is used.
template <typename T>
class SharedElement {
 public:
  SharedElement(SharedArray& array, std::size_t i) : array_(array), i_(i) {}
  SharedElement(const SharedElement&) = delete;

  operator T() && { return get(); }  // NOLINT: stands for a T
  T operator=(T value) && { return set(value); }
  T operator=(SharedElement&& other) && { return set(other.get()); }
  SharedPointer<T> operator&() && { return {array_, i_}; }

  template <typename V>
  T operator+=(V&& value) && {
    return update<std::plus<>>(std::forward<V>(value));
  }
  template <typename V>
  T operator-=(V&& value) && {
    return update<std::minus<>>(std::forward<V>(value));
  }
  template <typename V>
  T operator*=(V&& value) && {
    return update<std::multiplies<>>(std::forward<V>(value));
  }
  template <typename V>
  T operator/=(V&& value) && {
    return update<std::divides<>>(std::forward<V>(value));
  }
  template <typename V>
  T operator&=(V&& value) && {
    return update<std::bit_and<>>(std::forward<V>(value));
  }
  template <typename V>
  T operator|=(V&& value) && {
    return update<std::bit_or<>>(std::forward<V>(value));
  }
  template <typename V>
  T operator^=(V&& value) && {
    return update<std::bit_xor<>>(std::forward<V>(value));
  }
  T operator++() && { return set(static_cast<T>(get() + 1)); }
  T operator--() && { return set(static_cast<T>(get() - 1)); }
  T operator++(int) && {
    const T old = get();
    set(static_cast<T>(old + 1));
    return old;
  }
  T operator--(int) && {
    const T old = get();
    set(static_cast<T>(old - 1));
    return old;
  }

 private:
  template <typename>
  friend class SharedElement;

  template <typename U>
  static U value_of(const U& value) {
    return value;
  }
  template <typename U>
  static U value_of(SharedElement<U>&& element) {
    return element.get();
  }
  template <typename Operation, typename V>
  T update(V&& value) {
    const auto operand = value_of(std::forward<V>(value));
    using Common = std::common_type_t<T, decltype(operand)>;
    return set(static_cast<T>(Operation{}(static_cast<Common>(get()), static_cast<Common>(operand))));
  }
  T get() {
    array_.read(i_);
    return reinterpret_cast<const T*>(array_.bytes())[i_];
  }
  T set(T value) {
    array_.write(i_);
    reinterpret_cast<T*>(array_.bytes())[i_] = value;
    return value;
  }

  SharedArray& array_;
  std::size_t i_;
};

/// The address of an element; its index may be out of range as long as it isn't used.
template <typename T>
class SharedPointer {
  static_assert(std::is_trivially_copyable_v<T>,
                "nothing constructs the elements of shared memory");
  static_assert(alignof(T) <= 16, "dynamic shared memory is aligned to 16 bytes");

 public:
  SharedPointer(SharedArray& array, std::size_t i) : array_(&array), i_(i) {}

  template <std::integral I>
  SharedElement<T> operator[](I i) const {
    return {*array_, i_ + static_cast<std::size_t>(i)};
  }
  SharedElement<T> operator*() const { return {*array_, i_}; }

  template <std::integral I>
  friend SharedPointer operator+(SharedPointer p, I n) {
    return {*p.array_, p.i_ + static_cast<std::size_t>(n)};
  }

  /// Replaces the element by f(element) atomically; returns what it was. `reads` is false if f ignores its argument.
  template <typename F>
  T change(F f, bool reads = true) const {
    array_->change(i_, reads);
    T& element = reinterpret_cast<T*>(array_->bytes())[i_];
    const T old = element;
    element = f(old);
    return old;
  }

 private:
  SharedArray* array_;
  std::size_t i_;
};

template <typename T, std::size_t count>
SharedPointer<T> shared_array(const void* site, const char* name) {
  static_assert(count > 0, "CUDA has no arrays without elements");
  return {fixed_shared(site, name, count, sizeof(T)), 0};
}

template <typename T>
SharedPointer<T> shared_rest(const char* name) {
  return {dynamic_shared(name, sizeof(T)), 0};
}

}  // namespace shardcheck::emu
