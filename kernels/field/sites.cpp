// SPDX-License-Identifier: Apache-2.0
#include "kernels/field/sites.hpp"

#include <vector>

namespace shardcheck::field {
namespace {

/// A NamedRange ends without saying whose it was, as profilers' ranges do: the ranges of a thread are a stack.
std::vector<std::string>& sites_of_this_thread() {
  thread_local std::vector<std::string> sites;
  return sites;
}

}  // namespace

std::string_view logical_site(std::string_view name) {
  std::string_view rest = name;
  const std::size_t digits = rest.find_last_not_of("0123456789");
  if (digits != std::string_view::npos && digits + 1 < rest.size() && rest[digits] == '.') {
    const std::string_view before = rest.substr(0, digits);
    if (before.ends_with(".reduced")) rest = before;
  }
  for (const std::string_view stage : {".partial", ".reduced"}) {
    if (rest.ends_with(stage)) return rest.substr(0, rest.size() - stage.size());
  }
  return name;
}

NamedRange enter_site(std::string_view name) {
  sites_of_this_thread().emplace_back(logical_site(name));
  return NamedRange([] { sites_of_this_thread().pop_back(); });
}

std::string_view current_site() {
  const std::vector<std::string>& sites = sites_of_this_thread();
  return sites.empty() ? std::string_view() : std::string_view(sites.back());
}

}  // namespace shardcheck::field
