// SPDX-License-Identifier: Apache-2.0
// The rotary embedding of a config.json, in both spellings. Private to .cpp files.
#pragma once

#include <string>

#include "model/config.hpp"
#include "model/config_fields.hpp"

namespace shardcheck {

/// transformers before 5: "rope_theta" and "rope_scaling"; since: "rope_parameters", which holds both.
/// Throws InputError on a type other than default, linear, llama3, on a key that isn't known there
/// (`--ignore-key rope_scaling.KEY` to go on), and where the two spellings contradict each other.
RopeConfig read_rope(const ConfigFields& fields, const std::string& origin,
                     const ConfigOptions& options);

}  // namespace shardcheck
