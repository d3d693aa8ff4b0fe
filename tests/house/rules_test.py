# SPDX-License-Identifier: Apache-2.0
"""Plants one broken rule at a time and expects rules.py to name it, and nothing else."""
import tempfile
import unittest
from pathlib import Path

import rules

HEAD = rules.LICENCE + "\n"
HEADER = HEAD + "#pragma once\n"
PRIVATE_HEADER = HEAD + "// Matrices. Private to .cpp files.\n#pragma once\n"


class Rules(unittest.TestCase):
    def found(self, files):
        with tempfile.TemporaryDirectory() as root:
            for name, text in files.items():
                path = Path(root) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return list(rules.check(Path(root)))

    def expect(self, name, line, words, files):
        found = self.found(files)
        self.assertEqual([(name, line)], [f[:2] for f in found], found)
        self.assertIn(words, found[0][2])

    def test_a_tree_that_keeps_the_rules(self):
        self.assertEqual([], self.found({
            "model/config.hpp": HEADER + "#include <string>\n",
            "sharded/plan.cpp": HEAD + '#include "sharded/plan.hpp"\n#include "model/config.hpp"\n',
            "reference/eigen_map.hpp": PRIVATE_HEADER + "#include <Eigen/Core>\n",
            "reference/block.hpp": PRIVATE_HEADER + '#include "reference/eigen_map.hpp"\n',
            "reference/linear.cpp": HEAD + '#include "reference/eigen_map.hpp"\n',
            "harness/local/linear.cpp": HEAD + '#include "sharded/program.hpp"\n#include "reference/blocks.hpp"\n',
        }))

    def test_reference_and_sharded_stay_apart(self):
        self.expect("reference/a.cpp", 2, "may not include sharded/",
                    {"reference/a.cpp": HEAD + '#include "sharded/partition.hpp"\n'})
        self.expect("sharded/ops/a.cpp", 2, "may not include reference/",
                    {"sharded/ops/a.cpp": HEAD + '#include "reference/blocks.hpp"\n'})

    def test_dependencies_point_one_way(self):
        self.expect("model/a.hpp", 3, "may not include kernels/",
                    {"model/a.hpp": HEADER + '#  include "kernels/tensor.hpp"\n'})

    def test_the_local_check_calls_nothing_it_checks(self):
        self.expect("harness/local/a.cpp", 2, "sharded/ops/linear.hpp",
                    {"harness/local/a.cpp": HEAD + '#include "sharded/ops/linear.hpp"\n'})

    def test_nothing_above_a_device_knows_which_one_runs(self):
        for name in ["sharded/runner.cpp", "sim/cost.cpp", "harness/verify.cpp"]:
            self.expect(name, 2, "may not know on which", {name: HEAD + '#include "kernels/cuda/memory.hpp"\n'})
        self.expect("sharded/comm/nccl/a.cpp", 2, "for GPUs alone",
                    {"sharded/comm/nccl/a.cpp": HEAD + '#include "kernels/cpu/cpu_device.hpp"\n'})
        self.expect("harness/proof/a.cpp", 2, "the field alone",
                    {"harness/proof/a.cpp": HEAD + '#include "kernels/cpu/cpu_device.hpp"\n'})
        self.assertEqual([], self.found({
            "harness/proof/a.cpp": HEAD + '#include "kernels/field/field_device.hpp"\n',
            "sharded/runner.cpp": HEAD + '#include "kernels/device.hpp"\n',
            "sharded/comm/nccl/a.cpp": HEAD + '#include "kernels/cuda/memory.hpp"\n'}))

    def test_heavy_headers_stay_private(self):
        self.expect("model/a.hpp", 3, "nlohmann/json.hpp",
                    {"model/a.hpp": HEADER + "#include <nlohmann/json.hpp>\n"})
        self.expect("model/b.hpp", 3, "model/a.hpp",
                    {"model/a.hpp": PRIVATE_HEADER + "#include <nlohmann/json.hpp>\n",
                     "model/b.hpp": HEADER + '#include "model/a.hpp"\n'})
        self.expect("model/a.hpp", 3, "Eigen/Core",
                    {"model/a.hpp": HEADER + "#include <Eigen/Core>\n// Private is what this should be.\n"})

    def test_licence_and_guard(self):
        self.expect("sim/a.cpp", 1, "SPDX", {"sim/a.cpp": "int a;\n"})
        self.expect("sim/a.cpp", 1, "SPDX", {"sim/a.cpp": ""})
        self.expect("sim/a.hpp", 1, "#pragma once", {"sim/a.hpp": HEAD + "int a;\n"})
        self.expect("kernels/cuda/a.cuh", 1, "#pragma once", {"kernels/cuda/a.cuh": HEAD + "int a;\n"})
        self.expect("kernels/cuda/a.cu", 1, "SPDX", {"kernels/cuda/a.cu": "int a;\n"})


if __name__ == "__main__":
    unittest.main()
