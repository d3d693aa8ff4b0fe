// SPDX-License-Identifier: Apache-2.0
// Where in the model this thread works: what a random function is keyed by besides its name and argument.
#pragma once

#include <string>
#include <string_view>

#include "kernels/device.hpp"

namespace shardcheck::field {

/// The logical place that a tap or module belongs to: "layers.0.mlp.act.partial" and "layers.0.mlp.act.reduced.1" are
/// stages of "layers.0.mlp.act", which is all that the unsharded program has.
std::string_view logical_site(std::string_view name);

/// This thread works at `name` until the object goes; they nest, the inner one counts. Ranks are threads of their own.
NamedRange enter_site(std::string_view name);
/// "" outside of all ranges.
std::string_view current_site();

}  // namespace shardcheck::field
