// SPDX-License-Identifier: Apache-2.0
#include "sharded/run_parcel.hpp"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "sharded/comm/parcel.hpp"

namespace shardcheck {
namespace {

void write(ParcelWriter& out, const LedgerRecord& record) {
  out.value(record.kind).text(record.site).text(record.what).text(record.group).value(record.group_size);
  out.value(record.dtype)
      .value(record.reduction.op)
      .value(record.reduction.order)
      .value(record.reduction.hop);
  out.value(record.payload_bytes).value(record.own_bytes).value(record.flops).value(record.moved_bytes);
  out.value(record.phase).value(record.step);
}

LedgerRecord read_record(ParcelReader& in) {
  LedgerRecord record;
  record.kind = in.value<LedgerRecord::Kind>();
  record.site = in.text();
  record.what = in.text();
  record.group = in.text();
  record.group_size = in.value<int>();
  record.dtype = in.value<DType>();
  record.reduction.op = in.value<ReduceOp>();
  record.reduction.order = in.value<ReduceOrder>();
  record.reduction.hop = in.value<HopRounding>();
  record.payload_bytes = in.value<std::int64_t>();
  record.own_bytes = in.value<std::int64_t>();
  record.flops = in.value<std::int64_t>();
  record.moved_bytes = in.value<std::int64_t>();
  record.phase = in.value<Phase>();
  record.step = in.value<int>();
  return record;
}

void write(ParcelWriter& out, const WiringMismatch& mismatch) {
  out.value(mismatch.rank)
      .value(mismatch.phase)
      .value(mismatch.step)
      .text(mismatch.value)
      .text(mismatch.consumer)
      .text(mismatch.part);
}

WiringMismatch read_mismatch(ParcelReader& in) {
  WiringMismatch mismatch;
  mismatch.rank = in.value<int>();
  mismatch.phase = in.value<Phase>();
  mismatch.step = in.value<int>();
  mismatch.value = in.text();
  mismatch.consumer = in.text();
  mismatch.part = in.text();
  return mismatch;
}

void write(ParcelWriter& out, const RunEnd& end) {
  out.text(end.site)
      .value(end.order)
      .value(end.phase)
      .value(end.step)
      .text(end.message)
      .value(end.ranks.size());
  for (const int rank : end.ranks) out.value(rank);
}

RunEnd read_end(ParcelReader& in) {
  RunEnd end;
  end.site = in.text();
  end.order = in.value<int>();
  end.phase = in.value<Phase>();
  end.step = in.value<int>();
  end.message = in.text();
  end.ranks.resize(in.value<std::size_t>());
  for (int& rank : end.ranks) rank = in.value<int>();
  return end;
}

/// The values that a phase's instructions write, by name.
std::map<std::string_view, const Value*> written(const Program& program, Phase phase) {
  std::map<std::string_view, const Value*> values;
  const auto found = program.instructions.find(phase);
  if (found == program.instructions.end()) return values;
  for (const Instruction& instruction : found->second) {
    for (const int output : instruction.outputs)
      values[program.value(output).name] = &program.value(output);
  }
  return values;
}

}  // namespace

void TapRelay::take(const TapInfo& info, HostTensor value) {
  const std::lock_guard lock(mutex_);
  taps_.push_back({std::string(info.name), info.phase, info.step, info.rank, std::move(value)});
}

std::string pack_part(const RankPart& part, const TapRelay* taps) {
  ParcelWriter out;
  out.value(part.rank).value(part.ledger.size());
  for (const LedgerRecord& record : part.ledger) write(out, record);
  out.value(part.wiring.size());
  for (const WiringMismatch& mismatch : part.wiring) write(out, mismatch);
  out.value(part.wiring_checks).value(part.ended.has_value());
  if (part.ended) write(out, *part.ended);
  out.value(taps == nullptr ? std::size_t{0} : taps->taps().size());
  if (taps == nullptr) return out.take();
  for (const TapRelay::Tap& tap : taps->taps()) {
    out.text(tap.name).value(tap.phase).value(tap.step).value(tap.rank).tensor(tap.value);
  }
  return out.take();
}

RankPart unpack_part(std::string_view bytes, const Program& program, TapSink* taps) {
  ParcelReader in(bytes);
  RankPart part;
  part.rank = in.value<int>();
  part.ledger.resize(in.value<std::size_t>());
  for (LedgerRecord& record : part.ledger) record = read_record(in);
  part.wiring.resize(in.value<std::size_t>());
  for (WiringMismatch& mismatch : part.wiring) mismatch = read_mismatch(in);
  part.wiring_checks = in.value<std::int64_t>();
  if (in.value<bool>()) part.ended = read_end(in);
  std::map<Phase, std::map<std::string_view, const Value*>> values;
  for (auto rest = in.value<std::size_t>(); rest > 0; --rest) {
    const std::string_view name = in.text();
    TapInfo info{name, in.value<Phase>()};
    info.step = in.value<int>();
    info.rank = in.value<int>();
    HostTensor value = in.tensor();
    if (taps == nullptr) continue;
    if (values.find(info.phase) == values.end()) values[info.phase] = written(program, info.phase);
    const auto found = values[info.phase].find(name);
    if (found == values[info.phase].end()) {
      throw CommError(
          fmt::format("another process sends a value {} that this one's program lacks", name));
    }
    info.layout = &found->second->layout;
    taps->take(info, std::move(value));
  }
  return part;
}

}  // namespace shardcheck
