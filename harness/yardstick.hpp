// SPDX-License-Identifier: Apache-2.0
// The unsharded runs whose error is the measure of gate G4.
//
// One run at TP 1 is not enough of a measure. A model with massive activations (SmolLM2: 2e4 at the first token, of which
// the residual later cancels 90 %) turns a single rounding of that value into most of the error of its logits, so the error
// of one run is a matter of luck: on SmolLM2 in fp16 correct runs were seen from 0.8e-3 to 2.9e-3. Where the plain run's
// error is not enough, a second unsharded run is made in which every product that the plan cuts along its columns is summed
// from the same parts, rounded to the wire dtype in the same order, as the ranks' sums are. It contains all of the
// plan's rounding and none of its sharding: weights, activations and cache are whole.
#pragma once

#include <memory>

#include "sharded/program.hpp"
#include "sharded/runner.hpp"

namespace shardcheck {

/// For a run of `single` (one rank): products that `plan`'s program cuts along columns become sums of rounded parts.
/// Both must outlive it.
std::unique_ptr<Interposer> make_split_sums(const Program& plan);

}  // namespace shardcheck
