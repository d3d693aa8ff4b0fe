// SPDX-License-Identifier: Apache-2.0
#include "kernels/field/counts.hpp"

#include <algorithm>

namespace shardcheck::field {

double chance(const SiteCount& count) {
  const double calls = static_cast<double>(count.calls);
  return calls * calls * static_cast<double>(count.degree) * 0x1p-61;
}

double chance(const std::vector<SiteCount>& counts) {
  double sum = 0;
  for (const SiteCount& count : counts) sum += chance(count);
  return sum;
}

void Counts::add(Function function, const std::string& site, std::int64_t calls, std::int64_t degree) {
  const std::lock_guard lock(mutex_);
  SiteCount& count = sites_.try_emplace({site, function}, SiteCount{function, site}).first->second;
  count.calls += calls;
  count.degree = std::max(count.degree, degree);
}

void Counts::add_zero_denominators(std::int64_t n) {
  const std::lock_guard lock(mutex_);
  zero_denominators_ += n;
}

std::vector<SiteCount> Counts::sites() const {
  const std::lock_guard lock(mutex_);
  std::vector<SiteCount> result;
  for (const auto& [key, count] : sites_) result.push_back(count);
  return result;
}

std::int64_t Counts::zero_denominators() const {
  const std::lock_guard lock(mutex_);
  return zero_denominators_;
}

}  // namespace shardcheck::field
