// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace shardcheck {

/// How this process was started.
struct Launch {
  int processes = 1, process = 0;              // of the job
  int local_processes = 1, local_process = 0;  // on this machine

  bool several() const { return processes > 1; }
};

/// What mpirun of Open MPI, or Hydra's (MPICH, Intel MPI), says in the environment; alone if neither says anything.
Launch detect_launch();

}  // namespace shardcheck
