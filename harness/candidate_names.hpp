// SPDX-License-Identifier: Apache-2.0
// Private to candidates: how tensors are named in a rank's file.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "model/config.hpp"
#include "sharded/program.hpp"
#include "sharded/step.hpp"

namespace shardcheck {

/// "prefill/", "prefill1/", "decode0/".
std::string step_prefix(const Step& step);
/// Which of a run's dtypes a tap is stored in: a norm's statistic in the accumulate dtype, other partials in the wire's.
ValueDType dtype_of_tap(std::string_view tap, const Layout& layout);

/// A value on its way through a plan's collectives: "X.partial", then "X.reduced", "X.reduced.1", ..., then X; the input of
/// X as "X.in.0", "X.in.1", ..., then "X.in".
struct Stage {
  enum class Kind { none, partial, reduced, in };
  Kind kind = Kind::none;
  std::string module;  // X; empty if the tap is no stage
};
Stage stage_of(std::string_view tap);

/// Of every module that owns weights, the value that it takes.
std::map<std::string, std::string, std::less<>> module_inputs(const Config& config);

/// The value of the unsharded model that a tap holds, whole or in parts: X of "X.partial", X's input of "X.in", else the
/// tap itself.
std::string value_behind(std::string_view tap,
                         const std::map<std::string, std::string, std::less<>>& inputs);

}  // namespace shardcheck
