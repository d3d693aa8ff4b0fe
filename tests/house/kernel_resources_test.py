# SPDX-License-Identifier: Apache-2.0
"""Plants spills and missing kernels in what ptxas says and expects kernel_resources.py to find them."""
import unittest

import kernel_resources

KERNELS = ["attention_tiles", "rms_norm_rows", "reduce_terms", "copy_rows"]


def notes(name, spilled=0, architecture="sm_90"):
    return f"""ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{name}' for '{architecture}'
ptxas info    : Function properties for {name}
    {spilled} bytes stack frame, {spilled} bytes spill stores, {spilled} bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Compile time = 33.962 ms
"""


class KernelResources(unittest.TestCase):
    def test_all_well(self):
        lines, problems = kernel_resources.report([notes(name) for name in KERNELS])
        self.assertEqual([], problems)
        self.assertEqual(len(KERNELS), len(lines))
        self.assertIn(" 40 registers", lines[0])
        self.assertIn("1024 B shared", lines[0])

    def test_a_spill_of_one_instance_is_found(self):
        for hot in KERNELS:
            texts = [notes(name, 16 if name == hot else 0) for name in KERNELS] + [notes(hot, 0, "sm_80")]
            _, problems = kernel_resources.report(texts)
            self.assertEqual(1, len(problems), problems)
            self.assertIn(f"{hot} (sm_90) spills up to 32 bytes", problems[0])

    def test_other_kernels_may_spill(self):
        _, problems = kernel_resources.report([notes(name) for name in KERNELS] + [notes("hash_tensor", 8)])
        self.assertEqual([], problems)

    def test_a_kind_that_is_gone_is_missed(self):
        for gone in KERNELS:
            _, problems = kernel_resources.report([notes(name) for name in KERNELS if name != gone])
            self.assertEqual(1, len(problems), problems)
            self.assertIn("was something renamed?", problems[0])

    def test_mangled_names(self):
        texts = [notes(f"_ZN10shardcheck3gpu{len(name)}{name}IfEEvT_") for name in KERNELS]
        _, problems = kernel_resources.report(texts)
        self.assertEqual([], problems)


if __name__ == "__main__":
    unittest.main()
