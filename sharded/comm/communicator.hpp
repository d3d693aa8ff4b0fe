// SPDX-License-Identifier: Apache-2.0
// Collectives among the ranks of one group. A group of one is a no-op everywhere, so that no caller asks.
//
// Before data moves, every call is checked against the peers' calls: kind, whole shape, partition, dtype, reduction
// and sequence number must agree, and a local extent must be the rank's part. A difference throws CommError naming
// each rank's call site; it never hangs. Receive buffers are poisoned first, so a part that nobody filled is NaN.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device.hpp"
#include "sharded/layout.hpp"
#include "sharded/ledger.hpp"
#include "sharded/mesh.hpp"

namespace shardcheck {

/// Who calls, for messages and the ledger: the tap whose value is produced.
struct CallSite {
  std::string site;  // "layers.3.mlp.down_proj"
  Phase phase = Phase::prefill;
  int step = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;  // within the group

  /// out = reduction over ranks of in.                                     in P [M, D]   out R [M, D], not in
  /// Payload M D s bytes.
  virtual void all_reduce(Stream&, const Tensor& in, const ReduceSpec& spec, const Tensor& out,
                          const CallSite& site) = 0;
  /// out = the whole of which in is this rank's part along `dim`; part[r] are rank r's ranges in the whole. Where
  /// parts overlap (kv heads) the lowest rank's numbers win.                in S(dim)   out R
  /// Payload: the output's bytes.
  virtual void all_gather(Stream&, const Tensor& in, Dim dim, const Partition& part,
                          const Tensor& out, const CallSite& site) = 0;
  /// out = this rank's part along `dim` of the reduction over ranks of in.  in P [M, D]  out S(dim)
  /// Payload: the input's bytes.
  virtual void reduce_scatter(Stream&, const Tensor& in, Dim dim, const Partition& part,
                              const ReduceSpec& spec, const Tensor& out, const CallSite& site) = 0;
  /// in is cut along `concat` by concat_part; out is cut along `split` by split_part.
  /// Payload: the whole tensor's bytes.
  virtual void all_to_all(Stream&, const Tensor& in, Dim split, const Partition& split_part, Dim concat,
                          const Partition& concat_part, const Tensor& out, const CallSite& site) = 0;
  /// out = root's in; only the root's is read. Payload: the message.
  virtual void broadcast(Stream&, const Tensor& in, int root, const Tensor& out,
                         const CallSite& site) = 0;
  /// A message to another member, which receives those of each sender in their order. Waits until it is received.
  virtual void send(Stream&, const Tensor& in, int to, const CallSite& site) = 0;
  virtual void recv(Stream&, const Tensor& out, int from, const CallSite& site) = 0;
};

/// The ranks of one run and the groups between them.
class World {
 public:
  virtual ~World() = default;
  virtual const Mesh& mesh() const = 0;
  /// The communicator of `rank` over these axes (indices into mesh().axes). It appends to `ledger`.
  /// A group of one gets a communicator that copies in to out and records nothing.
  virtual std::unique_ptr<Communicator> group(int rank, const std::vector<int>& axes,
                                              Device& device, Ledger& ledger) = 0;
  /// Runs `body(rank)` for every rank and returns when all have ended. A rank that throws wakes all waiting ones;
  /// the exception that started it is rethrown here with its type, "rank 2: " before its message. When every live rank
  /// waits and no group is complete, or a rank has returned while others wait for it, all waiting ranks throw CommError
  /// with all call sites; it is rethrown as it is, as is one about ranks that disagree.
  virtual void run(const std::function<void(int rank)>& body) = 0;

  // ---- where ranks are processes, each of them runs the program and sees its own rank's results ----
  /// True if this process runs this rank.
  virtual bool runs(int rank) const { return 0 <= rank && rank < mesh().ranks(); }
  /// True in the process to which gather brings what the others have: it alone judges and prints.
  virtual bool judges() const { return true; }
  /// To be called by every process after a run. In the one that judges: what each process that runs a rank passed, by
  /// rank. Elsewhere nothing.
  virtual std::vector<std::string> gather(std::string bytes) { return {std::move(bytes)}; }

  /// What a report must say of how this world moves data; empty if nothing.
  virtual std::vector<std::string> notes() const { return {}; }
};

/// One kind of communicator.
struct WorldKind {
  /// Throws InputError if this mesh can't run on it here.
  std::function<std::unique_ptr<World>(const Mesh&)> make;
  /// What there is of it here: a sentence for `shardcheck info`. Never throws.
  std::function<std::string()> describe;
};

/// Kinds of communicator by name. A value that is passed in: a new kind is one `add`.
class WorldRegistry {
 public:
  void add(std::string kind, WorldKind entry) { entries_[std::move(kind)] = std::move(entry); }
  std::unique_ptr<World> make(const std::string& kind, const Mesh& mesh) const;  // InputError names the kinds
  std::string describe(const std::string& kind) const;
  std::vector<std::string> kinds() const;

 private:
  const WorldKind& entry(const std::string& kind) const;

  std::map<std::string, WorldKind> entries_;
};

/// "threads": ranks are threads of this process, and data moves by the device's own copies and sums.
/// "solo": one rank at a time, for devices without values (meta): checks and records like "threads" but moves nothing
/// and waits for nobody.
/// "nccl": threads of this process with a GPU each; NCCL moves the data. A module, opened when it is asked for.
/// "mpi": ranks are processes started by mpirun; data moves through their hosts. A module too. It ends with the last
/// world and registry that used it, and can't be started again.
/// "mpi+nccl": the same with a GPU for each process; NCCL moves the data.
WorldRegistry builtin_worlds();

/// The kind that suits: `devices` is how many devices of this kind this process can use. Under mpirun "mpi", or
/// "mpi+nccl" where each process of the machine has a cuda device of its own; "nccl" where each rank has one; else
/// "threads".
std::string default_world(const std::string& device_kind, int devices, int ranks);

}  // namespace shardcheck
