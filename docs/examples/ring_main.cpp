// SPDX-License-Identifier: Apache-2.0
// Checks the plan ring.json, whose attention is an op of our own: ring_main MODEL PLAN RANKS...
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "docs/examples/ring_attention.hpp"
#include "harness/lint.hpp"
#include "harness/prove.hpp"
#include "model/model.hpp"

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: ring_main MODEL PLAN RANKS...\n");
    return 2;
  }
  try {
    const shardcheck::VerifyParts parts = ring::parts_with_ring_attention();
    const shardcheck::Model model = shardcheck::load_model(argv[1]);
    const shardcheck::Plan plan = shardcheck::load_plan(argv[2]);
    std::vector<shardcheck::Mesh> meshes;
    for (int i = 3; i < argc; ++i) meshes.push_back({{{plan.mesh.front(), std::atoi(argv[i])}}});

    const shardcheck::LintReport legal = lint(model, plan, meshes, parts.ops);
    std::printf("%s", lint_text(legal).c_str());

    shardcheck::ProveOptions proof;
    proof.meshes = meshes;
    proof.phases = {shardcheck::Phase::prefill, shardcheck::Phase::decode};
    const shardcheck::ProveReport proved = prove(model, plan, proof, parts);
    std::printf("%s", prove_text(proved).c_str());

    shardcheck::VerifyOptions options;
    options.meshes = meshes;
    options.dtypes = {shardcheck::DType::f64, shardcheck::DType::bf16};
    options.phases = proof.phases;
    const shardcheck::VerifyReport verified = verify(model, plan, options, parts);
    std::printf("%s", verify_table(verified, false).c_str());
    return legal.passed() && proved.passed() && verified.passed() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
