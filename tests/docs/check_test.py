# SPDX-License-Identifier: Apache-2.0
"""Pages with one planted fault each, and pages without: check.py must tell them apart and name the line."""
import textwrap
import unittest

import check


class Pages(unittest.TestCase):
    def problems(self, page):
        page = textwrap.dedent(page).lstrip("\n")
        try:
            return [f"{line}: {sentence}" for line, sentence in check.check_page(page, check.ROOT, "/bin/true")]
        except check.PageError as error:
            return [str(error)]

    def expect(self, start, words, page):
        found = self.problems(page)
        self.assertEqual(1, len(found), found)
        self.assertTrue(found[0].startswith(start + ":"), found)
        self.assertIn(words, found[0])

    def test_a_true_page(self):
        self.assertEqual([], self.problems("""
            See [the tree](tests) and `tests/docs/check.py`; `configs/NAME/x` and `tests/NAME/y` are patterns.
            <!-- checked: file plan.json -->
            ```json
            {"a": 1}
            ```
            <!-- checked: exact
                 volatile: [0-9.]+ s -->
            ```console
            $ cat plan.json
            {"a": 1}
            $ printf 'one\\ntwo\\nthree\\n'; \\
              echo took 12.25 s
            one
            ...
            took 3 s
            $ true
            ```
            <!-- checked: exact
                 exit: 3 -->
            ```console
            $ echo no; exit 3
            no
            ```
            <!-- checked: runs -->
            ```sh
            cd tests
            test -d docs
            ```
            <!-- checked: no, it is interactive -->
            ```console
            $ false
            ```
            ```cpp
            not a command
            ```
            """))

    def test_a_changed_line(self):
        self.expect("4", "the page shows 'two', the command printed 'one'", """
            <!-- checked: exact -->
            ```console
            $ echo one
            two
            ```
            """)

    def test_a_figure_is_compared_unless_it_is_volatile(self):
        page = """
            <!-- checked: exact{} -->
            ```console
            $ echo margin 1.25
            margin 1.26
            ```
            """
        self.expect("4", "margin 1.25", page.format(""))
        self.assertEqual([], self.problems(page.format("\n            volatile: [0-9.]+")))

    def test_lines_too_few_and_too_many(self):
        self.expect("5", "no more lines", """
            <!-- checked: exact -->
            ```console
            $ echo one
            one
            two
            ```
            """)
        self.expect("5", "printed more: 'two'", """
            <!-- checked: exact -->
            ```console
            $ printf 'one\\ntwo\\n'
            one
            ```
            """)
        self.expect("5", "the page shows 'four'", """
            <!-- checked: exact -->
            ```console
            $ printf 'one\\ntwo\\nthree\\n'
            ...
            four
            ```
            """)

    def test_an_exit_code(self):
        self.expect("3", "exit code 1, not 0", """
            <!-- checked: runs -->
            ```console
            $ false
            ```
            """)
        self.expect("4", "exit code 0, not 2", """
            <!-- checked: runs
                 exit: 2 -->
            ```console
            $ true
            ```
            """)
        self.expect("3", "exit code 1, not 0", """
            <!-- checked: runs -->
            ```sh
            false
            true
            ```
            """)

    def test_a_console_block_that_nobody_marked(self):
        self.expect("1", "not checked", """
            ```console
            $ true
            ```
            """)
        self.expect("2", "indented", """
            - a list
              ```console
              $ true
              ```
            """)

    def test_a_comment_that_says_nothing(self):
        self.expect("2", "none of exact", "<!-- checked: exactly -->\n```console\n$ true\n```\n")
        self.expect("2", "needs a reason", "<!-- checked: no -->\n```console\n$ true\n```\n")
        self.expect("3", "'exits: 1'", "<!-- checked: runs\nexits: 1 -->\n```console\n$ true\n```\n")
        self.expect("2", "without a command", "<!-- checked: exact -->\n```console\noutput\n```\n")

    def test_only_the_comment_right_before_a_block_counts(self):
        self.expect("6", "not checked", """
            <!-- checked: runs -->
            ```console
            $ true
            ```
            And then:
            ```console
            $ true
            ```
            """)

    def test_a_path_and_a_link_to_nowhere(self):
        self.expect("1", "missing.md", "See [that](docs/missing.md#part).\n")
        self.expect("1", "tests/docs/missing.py", "It is in `tests/docs/missing.py`.\n")


if __name__ == "__main__":
    unittest.main()
