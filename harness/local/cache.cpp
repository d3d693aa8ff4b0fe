// SPDX-License-Identifier: Apache-2.0
// What attention reads of a sequence: the keys (values) of all its positions that a query of the step may see, from
// whichever step computed them, in the order of the positions. A copy, so nothing may differ.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "harness/local/local_op.hpp"

namespace shardcheck {

LocalValue local_cache(const LocalCall& call) {
  const F64Matrix& x = call.inputs[static_cast<std::size_t>(call.output)];
  const auto window = static_cast<std::int64_t>(call.attribute("window"));
  std::int64_t rows = 0;
  for (const Step* step : call.steps) rows += cache_rows(*step, window);
  LocalValue value;
  value.y = F64Matrix(rows, x.cols());
  // (sequence, position) -> row of x. A later step may write a position again; what it read was the newest.
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> newest;
  std::int64_t x_row = 0, y_row = 0;
  for (const Step* step : call.history) {
    for (const StepSequence& part : step->sequences) {
      for (std::int64_t i = 0; i < part.count; ++i)
        newest[{part.sequence, part.first + i}] = x_row++;
    }
    if (std::find(call.steps.begin(), call.steps.end(), step) == call.steps.end()) continue;
    const std::vector<Range> visible = visible_positions(*step, window);
    for (std::size_t s = 0; s < visible.size(); ++s) {
      const std::int64_t sequence = step->sequences[s].sequence;
      for (std::int64_t position = visible[s].begin; position < visible[s].end; ++position) {
        const auto it = newest.find({sequence, position});
        if (it == newest.end()) {
          value.problem = fmt::format(
              "position {} of sequence {} was computed in no step of the run", position, sequence);
          return value;
        }
        std::copy_n(x.row(it->second).begin(), x.cols(), value.y.row(y_row++).begin());
      }
    }
  }
  return value;
}

}  // namespace shardcheck
