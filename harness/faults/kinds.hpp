// SPDX-License-Identifier: Apache-2.0
// The faults of each kind. One file per kind; catalogue.cpp lists them.
#pragma once

#include <vector>

#include "harness/faults/fault.hpp"

namespace shardcheck::faults {

std::vector<Fault> over_reduction();        // A
std::vector<Fault> under_reduction();       // B
std::vector<Fault> tokens();                // C
std::vector<Fault> sections();              // D
std::vector<Fault> loader_slices();         // E
std::vector<Fault> heads();                 // F
std::vector<Fault> per_head_parameters();   // G
std::vector<Fault> statistics();            // H
std::vector<Fault> units();                 // J
std::vector<Fault> vocabulary();            // K
std::vector<Fault> divergent_ranks();       // L
std::vector<Fault> exchanges();             // M
std::vector<Fault> precision();             // N
std::vector<Fault> caches_and_positions();  // O

}  // namespace shardcheck::faults
