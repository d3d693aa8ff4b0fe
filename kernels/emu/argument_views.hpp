// SPDX-License-Identifier: Apache-2.0
// What a kernel's arguments say about the bytes that it touches. Views are found wherever they are: as arguments, in
// Arrays, and in plain structs of up to eight members. Raw pointers don't compile: nothing would know what lies behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cuda/view.cuh"
#include "kernels/emu/access.hpp"

namespace shardcheck::emu {

template <typename T>
struct ViewTraits : std::false_type {};
template <typename T>
struct ViewTraits<gpu::View<T>> : std::true_type {
  using Element = T;
};
template <typename T>
inline constexpr bool kIsArray = false;
template <typename T, int kMost>
inline constexpr bool kIsArray<gpu::Array<T, kMost>> = true;

void check_aligned(const void* pointer, std::size_t element_bytes, const char* kernel);

/// Stands for a member of any type when the members of a struct are counted.
struct AnyMember {
  template <typename T>
  operator T() const;  // NOLINT: implicit on purpose
};

template <typename T, std::size_t... kIndices>
constexpr bool takes_members(std::index_sequence<kIndices...>) {
  return requires { T{(static_cast<void>(kIndices), AnyMember{})...}; };
}

/// Members of an aggregate; 9 for more than eight.
template <typename T, std::size_t kCount = 9>
constexpr std::size_t members_of() {
  if constexpr (kCount == 0) {
    return 0;
  } else if constexpr (takes_members<T>(std::make_index_sequence<kCount>())) {
    return kCount;
  } else {
    return members_of<T, kCount - 1>();
  }
}

/// Calls visit(member) for every member of a plain struct.
template <typename T, typename Visit>
void for_each_member(const T& value, Visit visit) {
  constexpr std::size_t kMembers = members_of<T>();
  static_assert(
      kMembers <= 8,
      "a kernel's struct argument has more than eight members: pass its views one by one");
  const auto each = [&](const auto&... members) { (visit(members), ...); };
  if constexpr (kMembers == 1) {
    const auto& [a] = value;
    each(a);
  } else if constexpr (kMembers == 2) {
    const auto& [a, b] = value;
    each(a, b);
  } else if constexpr (kMembers == 3) {
    const auto& [a, b, c] = value;
    each(a, b, c);
  } else if constexpr (kMembers == 4) {
    const auto& [a, b, c, d] = value;
    each(a, b, c, d);
  } else if constexpr (kMembers == 5) {
    const auto& [a, b, c, d, e] = value;
    each(a, b, c, d, e);
  } else if constexpr (kMembers == 6) {
    const auto& [a, b, c, d, e, f] = value;
    each(a, b, c, d, e, f);
  } else if constexpr (kMembers == 7) {
    const auto& [a, b, c, d, e, f, g] = value;
    each(a, b, c, d, e, f, g);
  } else if constexpr (kMembers == 8) {
    const auto& [a, b, c, d, e, f, g, h] = value;
    each(a, b, c, d, e, f, g, h);
  }
}

/// Appends what a kernel reads (View<const T>) or reads and writes (View<T>) by way of this argument. A struct that
/// isn't a plain one lists its views itself: template <typename Visit> void for_each_view(Visit visit) const.
/// Throws DeviceError naming the kernel if a View's elements aren't aligned: on a GPU that is a fault.
template <typename T>
void append_accesses(const T& argument, const char* kernel, std::vector<Access>& accesses) {
  static_assert(!std::is_pointer_v<T>,
                "a kernel's argument is a raw pointer: pass a View, which says what is touched");
  if constexpr (ViewTraits<T>::value) {
    using Element = typename ViewTraits<T>::Element;
    if (argument.rows > 0 && argument.cols > 0)
      check_aligned(argument.data, sizeof(Element), kernel);
    append_matrix(argument.data, sizeof(Element), argument.rows, argument.cols, argument.row_stride,
                  argument.col_stride, std::is_const_v<Element> ? Use::reads : Use::writes, accesses);
  } else if constexpr (kIsArray<T>) {
    for (int i = 0; i < argument.size; ++i) append_accesses(argument.values[i], kernel, accesses);
  } else if constexpr (requires { argument.for_each_view([](const auto&) {}); }) {
    argument.for_each_view([&](const auto& view) { append_accesses(view, kernel, accesses); });
  } else if constexpr (std::is_array_v<T>) {
    for (const auto& element : argument) append_accesses(element, kernel, accesses);
  } else if constexpr (!std::is_arithmetic_v<T> && !std::is_enum_v<T> && !std::is_empty_v<T>) {
    static_assert(std::is_aggregate_v<T>,
                  "a kernel's argument hides its members: give it for_each_view");
    for_each_member(argument, [&](const auto& member) { append_accesses(member, kernel, accesses); });
  }
}

}  // namespace shardcheck::emu
