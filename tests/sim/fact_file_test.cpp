// SPDX-License-Identifier: Apache-2.0
#include "sim/fact_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "model/error.hpp"
#include "model/shipped.hpp"
#include "sim/gpu.hpp"
#include "sim/link.hpp"

namespace shardcheck::sim {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class FactFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "shardcheck-facts-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& text) {
    const auto file = folder_ / "mine.json";
    std::ofstream(file) << text;
    return file;
  }

  static Json shipped(const char* folder, const char* file) {
    return Json::parse(read_text(find_shipped(folder, file)));
  }

  // The message of the InputError that reading a changed copy of a shipped link gives; empty if it is accepted.
  std::string refusal(const char* link, const std::function<void(Json&)>& change) {
    Json json = shipped("links", link);
    change(json);
    return message([&] { read_link(write(json.dump())); });
  }
  static std::string message(const std::function<void()>& body) {
    try {
      body();
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }

  std::filesystem::path folder_;
};

TEST_F(FactFileTest, AnUnchangedCopyIsAccepted) {
  EXPECT_EQ(refusal("nvlink4-nvls", [](Json&) {}), "");
  const Link mine = load_link((folder_ / "mine.json").string());
  EXPECT_EQ(mine.name, "mine");
  EXPECT_EQ(mine.bandwidth.value, load_link("nvlink4-nvls").bandwidth.value);
}

TEST_F(FactFileTest, RefusalsNameFilePlaceRuleAndRemedy) {
  struct Case {
    const char* what;
    std::function<void(Json&)> change;
    const char* place;
    const char* rule;
  };
  const std::vector<Case> cases{
      {"schema", [](Json& j) { j["schema"] = "shardcheck.link/9"; }, "\"schema\"",
       "shardcheck.link/1"},
      {"gpu file as link", [](Json& j) { j["schema"] = "shardcheck.gpu/1"; }, "\"schema\"",
       "shardcheck.link/1"},
      {"no name", [](Json& j) { j.erase("name"); }, "\"name\"", "missing"},
      {"empty name", [](Json& j) { j["name"] = ""; }, "\"name\"", "isn't empty"},
      {"no latency", [](Json& j) { j.erase("latency"); }, "\"latency\"", "missing"},
      {"bare number", [](Json& j) { j["latency"] = 3; }, "\"latency\"", "a fact is an object"},
      {"unknown key", [](Json& j) { j["bandwith"] = j["bandwidth"]; }, "\"bandwith\"",
       "nearest: \"bandwidth\""},
      {"unknown field", [](Json& j) { j["latency"]["sauce"] = "x"; }, "\"latency\"", "\"sauce\""},
      {"no value", [](Json& j) { j["latency"].erase("value"); }, "\"latency\"", "no \"value\""},
      {"string value", [](Json& j) { j["latency"]["value"] = "3"; }, "\"latency\"",
       "write a number"},
      {"negative", [](Json& j) { j["latency"]["value"] = -1; }, "\"latency\"", "negative"},
      {"zero rate", [](Json& j) { j["bandwidth"]["value"] = 0; }, "\"bandwidth\"", "above 0"},
      {"null", [](Json& j) { j["bandwidth"]["value"] = nullptr; }, "\"bandwidth\"",
       "write a number"},
      {"unit", [](Json& j) { j["bandwidth"]["unit"] = "GBps"; }, "\"bandwidth\"", "GB/s"},
      {"no unit", [](Json& j) { j["bandwidth"].erase("unit"); }, "\"bandwidth\"", "write one of"},
      {"time for rate", [](Json& j) { j["bandwidth"]["unit"] = "us"; }, "\"bandwidth\"",
       "write one of"},
      {"direction", [](Json& j) { j["bandwidth"]["direction"] = "up"; }, "\"bandwidth\"",
       "per_direction"},
      {"no direction", [](Json& j) { j["bandwidth"].erase("direction"); }, "\"bandwidth\"",
       "per_direction"},
      {"direction of a ratio", [](Json& j) { j["effective_fraction"]["direction"] = "both"; },
       "\"effective_fraction\"", "remove it"},
      {"kind", [](Json& j) { j["latency"]["kind"] = "guess"; }, "\"latency\"", "assumed"},
      {"no source", [](Json& j) { j["latency"].erase("source"); }, "\"latency\"", "no \"source\""},
      {"empty source", [](Json& j) { j["latency"]["source"] = ""; }, "\"latency\"", "no \"source\""},
      {"fraction above 1", [](Json& j) { j["effective_fraction"]["value"] = 1.067; },
       "\"effective_fraction\"", "in_switch_fraction"},
      {"topology", [](Json& j) { j["topology"]["value"] = "star"; }, "\"topology\"", "partial_mesh"},
      {"half a GPU", [](Json& j) { j["group_limit"]["value"] = 2.5; }, "\"group_limit\"",
       "whole number"},
      {"one GPU", [](Json& j) { j["group_limit"]["value"] = 1; }, "\"group_limit\"", "at least 2"},
      {"flag", [](Json& j) { j["switch_reduces"]["value"] = "yes"; }, "\"switch_reduces\"",
       "true or false"},
      {"switch without its rate", [](Json& j) { j.erase("in_switch_fraction"); },
       "\"in_switch_fraction\"", "missing"},
      {"its rate without the switch", [](Json& j) { j["switch_reduces"]["value"] = false; },
       "\"in_switch_", "no meaning beside the others"},
      {"adding bus", [](Json& j) { j["topology"]["value"] = "bus"; }, "\"switch_reduces\"",
       "has no switch"},
      {"mesh", [](Json& j) { j["topology"]["value"] = "mesh"; }, "\"peer_bandwidth\"", "missing"},
      {"pair of 8", [](Json& j) { j["topology"]["value"] = "pair"; }, "\"group_limit\"",
       "must be 2"},
      {"fat peer", [](Json& j) { (j["peer_bandwidth"] = j["bandwidth"])["value"] = 451; },
       "\"peer_bandwidth\"", "is above"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(refusal("nvlink4-nvls", c.change),
                AllOf(HasSubstr("mine.json: "), HasSubstr(c.place), HasSubstr(c.rule)))
        << c.what;
  }
}

TEST_F(FactFileTest, TextsThatAreNoObjectOfFactsAreRefused) {
  for (const char* text :
       {"", "[]", "3", "{", "{\"schema\": \"shardcheck.link/1\"", "nonsense", "{\"schema\": 1}",
        "{\"schema\": \"shardcheck.link/1\", \"name\": \"\xff\"}"}) {
    EXPECT_THAT(message([&] { read_link(write(text)); }), HasSubstr("mine.json")) << text;
  }
  EXPECT_THAT(message([&] {
                read_link(write(R"({"schema": "shardcheck.link/1", "name": "a", "name": "b"})"));
              }),
              HasSubstr("given twice"));
  std::string huge = shipped("links", "pcie4-x16").dump();
  huge.replace(huge.find("31.5"), 4, "1e999");
  EXPECT_THAT(message([&] { read_link(write(huge)); }), HasSubstr("mine.json"));
}

TEST_F(FactFileTest, EveryPrefixOfAFileIsRefused) {
  const std::string text = shipped("links", "xgmi-mi300x").dump();
  for (std::size_t n = 0; n < text.size(); ++n) {
    EXPECT_NE(message([&] { read_link(write(text.substr(0, n))); }), "") << n;
  }
}

TEST_F(FactFileTest, UnitsAndDirectionsAreConverted) {
  Json json = shipped("links", "pcie4-x16");
  json["bandwidth"]["value"] = 504;
  json["bandwidth"]["unit"] = "Gb/s";
  json["bandwidth"]["direction"] = "both";
  json["latency"]["value"] = 3000;
  json["latency"]["unit"] = "ns";
  json["latency"]["direction"] = "both";
  const Link link = read_link(write(json.dump()));
  EXPECT_DOUBLE_EQ(link.bandwidth.value.value, 31.5e9);
  EXPECT_DOUBLE_EQ(link.latency.value.value, 1.5e-6);
  EXPECT_EQ(std::get<double>(link.bandwidth.stated.value), 504.0);
  EXPECT_EQ(link.bandwidth.stated.direction, Direction::both);
}

TEST_F(FactFileTest, GpuFilesAreReadAsStrictly) {
  Json json = shipped("gpus", "h100");
  EXPECT_EQ(message([&] { read_gpu(write(json.dump())); }), "");
  Json wrong = json;
  wrong["peak"]["bf61"] = wrong["peak"]["bf16"];
  EXPECT_THAT(message([&] { read_gpu(write(wrong.dump())); }), HasSubstr("peak.bf61"));
  wrong = json;
  wrong["peak"] = Json::object();
  EXPECT_THAT(message([&] { read_gpu(write(wrong.dump())); }), HasSubstr("at least one of"));
  wrong = json;
  wrong["memory_bandwidth"]["direction"] = "both";
  EXPECT_THAT(message([&] { read_gpu(write(wrong.dump())); }), HasSubstr("memory_bandwidth"));
  wrong = json;
  wrong.erase("memory_size");
  EXPECT_THAT(message([&] { read_gpu(write(wrong.dump())); }), HasSubstr("memory_size"));
  wrong = json;
  wrong["peak"].erase("f64");
  EXPECT_EQ(message([&] { read_gpu(write(wrong.dump())); }), "");
}

TEST(ShippedFacts, EveryLinkParsesAndStatesWhereItsNumbersComeFrom) {
  const std::vector<Link> links = shipped_links();
  ASSERT_GE(links.size(), 39u);
  for (const Link& link : links) {
    EXPECT_FALSE(link.title.empty()) << link.name;
    for (const Constant& constant : link.constants)
      EXPECT_FALSE(constant.source.empty()) << link.name;
    EXPECT_EQ(link.switch_reduces, link.in_switch_fraction.has_value()) << link.name;
    if (link.peer_bandwidth && link.group_limit) {
      // All wires of a GPU together are what it states, up to the missing wires of a partial mesh.
      const double peers = link.group_limit->value - 1;
      EXPECT_GE(link.peer_bandwidth->value * peers,
                link.bandwidth.value * (link.reaches_all_peers() ? 1.0 : 0.5))
          << link.name;
    }
  }
  EXPECT_EQ(load_link("nvlink4-nvswitch3").bandwidth.value, BytesPerSecond(450e9));
  EXPECT_EQ(load_link("ib-ndr-400").bandwidth.value, BytesPerSecond(50e9));
  EXPECT_EQ(load_link("ib-ndr-400").latency.value, microseconds(1.0));
}

TEST(ShippedFacts, EveryGpuParsesAndKnowsTheFourDtypes) {
  for (const char* name : {"a100", "h100", "h200", "b200", "mi300x", "l40s", "rtx4090"}) {
    const Gpu gpu = load_gpu(name);
    EXPECT_EQ(gpu.name, name);
    EXPECT_EQ(gpu.peak.size(), 4u) << name;
    EXPECT_TRUE(gpu.tf32.has_value()) << name;
    EXPECT_LE(gpu.peak.at(DType::f32).value, gpu.tf32->value) << name;
    EXPECT_LT(gpu.tf32->value, gpu.peak.at(DType::bf16).value) << name;
    EXPECT_GT(gpu.memory_size.value, Bytes(20e9)) << name;
  }
  EXPECT_GE(shipped_names("gpus").size(), 7u);
}

TEST(ShippedFacts, AMistypedNameIsAnInputError) {
  EXPECT_THROW(load_link("nvlink4-nvswitch33"), InputError);
  EXPECT_THROW(load_gpu("h101"), InputError);
}

}  // namespace
}  // namespace shardcheck::sim
