// SPDX-License-Identifier: Apache-2.0
#include "model/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "input_error.hpp"
#include "model/error.hpp"
#include "model/shipped.hpp"
#include "temp_folder.hpp"

namespace shardcheck {
namespace {

using testing::HasSubstr;

/// A file from its header text and data, with the length put before it.
std::string file_bytes(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

std::vector<std::pair<std::string, HostTensor>> sample() {
  std::vector<std::pair<std::string, HostTensor>> tensors;
  tensors.emplace_back("b16", round_to(DType::bf16, {3}, std::vector<double>{1.5, -2.0, 3.25}));
  tensors.emplace_back(
      "w", round_to(DType::f32, {2, 3}, std::vector<double>{0.1, 0.2, 0.3, -0.4, 5e-9, 6e20}));
  HostTensor ids(DType::i64, {1, 4});
  for (std::size_t i = 0; i < 4; ++i)
    ids.as_mutable<std::int64_t>()[i] = static_cast<std::int64_t>(i * i) - 3;
  tensors.emplace_back("ids", ids);
  tensors.emplace_back("h", round_to(DType::f16, {1, 1, 2}, std::vector<double>{7.0, -0.125}));
  tensors.emplace_back("d", round_to(DType::f64, {2}, std::vector<double>{1.0 / 3.0, -1e300}));
  tensors.emplace_back("empty", HostTensor(DType::f32, {0, 5}));
  tensors.emplace_back("scalar", round_to(DType::f32, {}, std::vector<double>{2.5}));
  return tensors;
}

std::string open_error(const TempFolder& folder, const std::string& bytes) {
  const auto file = folder.write("bad.safetensors", bytes);
  const std::string message = input_error([&] { SafetensorsFile::open(file); });
  EXPECT_THAT(message, HasSubstr("bad.safetensors"));
  return message;
}

TEST(Safetensors, ReadsWhatItWrote) {
  const TempFolder folder;
  const auto file = folder.path() / "x.safetensors";
  const auto tensors = sample();
  write_safetensors(file, tensors, {{"made_by", "a test"}, {"quote", "\"\n"}});
  const SafetensorsFile read = SafetensorsFile::open(file);
  EXPECT_EQ(read.names(),
            (std::vector<std::string>{"b16", "d", "empty", "h", "ids", "scalar", "w"}));
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(read.tensor(name).bitwise_equal(tensor)) << name;
    EXPECT_EQ(read.info(name).dtype_name, info(tensor.dtype()).safetensors);
  }
  EXPECT_EQ(read.metadata().at("quote"), "\"\n");
  EXPECT_EQ(read.tensor("w").data(), read.raw("w").data()) << "aligned tensors are not copied";
  EXPECT_THAT(input_error([&] { read.tensor("ww"); }), HasSubstr("\"w\""));
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    files += entry.exists() ? 1 : 0;
  EXPECT_EQ(files, 1u) << "no temporary file is left";
}

TEST(Safetensors, TensorsOutliveTheFile) {
  const TempFolder folder;
  write_safetensors(folder.path() / "x.safetensors", sample());
  HostTensor tensor;
  { tensor = SafetensorsFile::open(folder.path() / "x.safetensors").tensor("d"); }
  EXPECT_EQ(tensor.at(0), 1.0 / 3.0);
  EXPECT_THROW(tensor.mutable_data(), std::logic_error);
}

TEST(Safetensors, UnalignedTensorsAreCopied) {
  const TempFolder folder;
  const std::string values("\0\0\xc0\x3f\0\0\0\xc0", 8);
  const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("f":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  const SafetensorsFile file = SafetensorsFile::open(
      folder.write("u.safetensors", file_bytes(header, "x" + values)));
  EXPECT_EQ(file.tensor("f").to_f64(), (std::vector<double>{1.5, -2.0}));
  EXPECT_THAT(input_error([&] { file.tensor("a"); }), HasSubstr("U8"));
}

TEST(Safetensors, RefusesLies) {
  const TempFolder folder;
  const auto header_error = [&](const std::string& header, std::size_t data) {
    return open_error(folder, file_bytes(header, std::string(data, 'x')));
  };
  const auto record = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
           offsets + "}}";
  };
  EXPECT_NO_THROW(SafetensorsFile::open(
      folder.write("ok", file_bytes(record("F32", "[2]", "[0,8]"), "12345678"))));
  EXPECT_THAT(header_error(record("F33", "[2]", "[0,8]"), 8), HasSubstr("F33"));
  EXPECT_THAT(header_error(record("F32", "[3]", "[0,8]"), 8), HasSubstr("needs 12 bytes"));
  EXPECT_THAT(header_error(record("F32", "[2]", "[0,8]"), 7), HasSubstr("7 bytes"));
  EXPECT_THAT(header_error(record("F32", "[2]", "[0,8]"), 9), HasSubstr("9 bytes"));
  EXPECT_THAT(header_error(record("F32", "[2]", "[8,0]"), 8), HasSubstr("offsets"));
  EXPECT_THAT(header_error(record("F32", "[2]", "[4,12]"), 12), HasSubstr("begins at byte 4"));
  EXPECT_THAT(header_error(record("F32", "[-2]", "[0,8]"), 8), HasSubstr("shape"));
  EXPECT_THAT(header_error(record("F32", "[2.0]", "[0,8]"), 8), HasSubstr("shape"));
  EXPECT_THAT(header_error(record("F32", "[4294967296,4294967296]", "[0,8]"), 8),
              HasSubstr("shape"));
  EXPECT_THAT(header_error(record("F32", "[9223372036854775809]", "[0,8]"), 8), HasSubstr("shape"));
  EXPECT_THAT(header_error(record("F32", "[2]", "[0,18446744073709551615]"), 8),
              HasSubstr("offsets"));
  EXPECT_THAT(header_error(record("F32", "[2]", "[0]"), 8), HasSubstr("offsets"));
  EXPECT_THAT(header_error(R"({"t":{"dtype":"F32","shape":[2]}})", 8), HasSubstr("data_offsets"));
  EXPECT_THAT(header_error(R"({"t":5})", 8), HasSubstr("\"t\""));
  EXPECT_THAT(header_error("[1]", 0), HasSubstr("object"));
  EXPECT_THAT(header_error("{", 0), HasSubstr("header"));
  EXPECT_THAT(header_error(R"({"__metadata__":{"a":1}})", 0), HasSubstr("metadata"));
  const std::string half = R"("dtype":"F32","shape":[1],"data_offsets":)";
  EXPECT_THAT(header_error("{\"a\":{" + half + "[0,4]},\"b\":{" + half + "[0,4]}}", 8),
              HasSubstr("begins at byte 0"));
  EXPECT_THAT(header_error("{\"a\":{" + half + "[0,4]},\"a\":{" + half + "[4,8]}}", 8),
              HasSubstr("twice"));
  EXPECT_THAT(header_error("{\"a\":{" + half + "[0,4]},\"b\":{" + half + "[8,12]}}", 12),
              HasSubstr("ends at 4"));
  EXPECT_THAT(open_error(folder, std::string(7, 'x')), HasSubstr("too few"));
  EXPECT_THAT(open_error(folder, std::string(8, '\xff')), HasSubstr("header"));
  EXPECT_THAT(input_error([&] { SafetensorsFile::open(folder.path() / "none"); }),
              HasSubstr("can't be read"));
  EXPECT_THAT(input_error([&] { SafetensorsFile::open(folder.path()); }),
              HasSubstr("regular file"));
}

// Every prefix fails; every change of a byte before the data loads or fails with one InputError.
TEST(Safetensors, DamagedFilesNeverCrash) {
  const TempFolder folder;
  const auto original = folder.path() / "x.safetensors";
  write_safetensors(original, sample(), {{"k", "v"}});
  const std::string bytes = read_text(original);
  const auto damaged = folder.path() / "damaged.safetensors";

  for (std::size_t length = 0; length < bytes.size(); ++length) {
    folder.write("damaged.safetensors", std::string_view(bytes).substr(0, length));
    ASSERT_THROW(SafetensorsFile::open(damaged), InputError) << length;
  }
  std::size_t header_end = 8;
  header_end += static_cast<unsigned char>(bytes[0]) + 256u * static_cast<unsigned char>(bytes[1]);
  std::size_t refused = 0;
  for (std::size_t at = 0; at < header_end; ++at) {
    for (const int flip : {1, 2, 4, 16, 64, 128}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      folder.write("damaged.safetensors", changed);
      try {
        const SafetensorsFile file = SafetensorsFile::open(damaged);
        for (const std::string& name : file.names()) {
          if (file.info(name).dtype) file.tensor(name).to_f64();
        }
      } catch (const InputError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, header_end) << "names and padding may change unseen, structure may not";
}

TEST(Safetensors, WritesNothingWhereItCannot) {
  const TempFolder folder;
  const auto missing = folder.path() / "no" / "x.safetensors";
  EXPECT_THAT(input_error([&] { write_safetensors(missing, sample()); }),
              HasSubstr("can't be written"));
  std::filesystem::create_directory(folder.path() / "taken.safetensors");
  std::filesystem::create_directory(folder.path() / "taken.safetensors" / "inside");
  EXPECT_THAT(input_error([&] { write_safetensors(folder.path() / "taken.safetensors", sample()); }),
              HasSubstr("can't be written"));
  std::size_t entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    entries += entry.exists() ? 1 : 0;
  EXPECT_EQ(entries, 1u);
  auto twice = sample();
  twice.push_back(twice.front());
  EXPECT_THROW(write_safetensors(folder.path() / "x", twice), std::logic_error);
}

TEST(SafetensorsFolder, FindsFilesByIndex) {
  const TempFolder folder;
  const auto all = sample();
  EXPECT_TRUE(open_safetensors_folder(folder.path()).empty());
  write_safetensors(folder.path() / "model-1.safetensors", std::span(all).first(3));
  EXPECT_EQ(open_safetensors_folder(folder.path()).size(), 1u);
  write_safetensors(folder.path() / "model-2.safetensors", std::span(all).subspan(3));
  EXPECT_THAT(input_error([&] { open_safetensors_folder(folder.path()); }), HasSubstr("index"));

  const auto index = [&](const std::string& weight_map) {
    folder.write("model.safetensors.index.json",
                 "{\"metadata\": {}, \"weight_map\": " + weight_map + "}");
  };
  const auto index_error = [&] {
    return input_error([&] { open_safetensors_folder(folder.path()); });
  };
  index(R"({"w": "model-1.safetensors", "d": "model-2.safetensors"})");
  EXPECT_EQ(open_safetensors_folder(folder.path()).size(), 2u);
  index(R"({"w": "model-2.safetensors"})");
  EXPECT_THAT(index_error(), HasSubstr("doesn't hold"));
  index(R"({"w": "../model-1.safetensors"})");
  EXPECT_THAT(index_error(), HasSubstr("beside the index"));
  index(R"({"w": "/etc/passwd"})");
  EXPECT_THAT(index_error(), HasSubstr("beside the index"));
  index(R"({"w": 5})");
  EXPECT_THAT(index_error(), HasSubstr("beside the index"));
  index(R"({"w": "model-3.safetensors"})");
  EXPECT_THAT(index_error(), HasSubstr("model-3.safetensors"));
  index("[]");
  EXPECT_THAT(index_error(), HasSubstr("weight_map"));
  write_safetensors(folder.path() / "model-2.safetensors", std::span(all).subspan(2));
  index(R"({"w": "model-1.safetensors", "d": "model-2.safetensors"})");
  EXPECT_THAT(index_error(), HasSubstr("\"ids\""));
  write_safetensors(folder.path() / "model.safetensors", std::span(all).first(1));
  EXPECT_EQ(open_safetensors_folder(folder.path()).size(), 1u);
}

}  // namespace
}  // namespace shardcheck
