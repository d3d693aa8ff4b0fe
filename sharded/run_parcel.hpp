// SPDX-License-Identifier: Apache-2.0
// What a process sends to the one that judges: its rank's part of a run's result.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sharded/runner.hpp"

namespace shardcheck {

/// Keeps taps until they are sent to the process that judges. Thread safe.
class TapRelay final : public TapSink {
 public:
  struct Tap {
    std::string name;
    Phase phase;
    int step, rank;
    HostTensor value;
  };

  explicit TapRelay(const TapSink& target) : target_(target) {}
  bool wants(std::string_view tap) const override { return target_.wants(tap); }
  void take(const TapInfo& info, HostTensor value) override;
  /// Once all ranks have ended.
  const std::vector<Tap>& taps() const { return taps_; }

 private:
  const TapSink& target_;
  std::mutex mutex_;
  std::vector<Tap> taps_;
};

struct RankPart {
  int rank = 0;
  Ledger ledger;
  std::vector<WiringMismatch> wiring;
  std::int64_t wiring_checks = 0;
  std::optional<RunEnd> ended;
};

/// `taps` may be null.
std::string pack_part(const RankPart& part, const TapRelay* taps);
/// The part's taps go to `taps`, if there is one, as if the rank had run here.
RankPart unpack_part(std::string_view bytes, const Program& program, TapSink* taps);

}  // namespace shardcheck
