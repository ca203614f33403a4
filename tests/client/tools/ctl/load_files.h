// Files of rows for tests of ckvctl corpus load and export.

#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "client/tools/ctl/corpus/tensor_files.h"
#include "client/tools/reference_engine/reference_engine.h"
#include "proto/geometry.h"
#include "store/formats/safetensors.h"
#include "tests/support/temp_folder.h"

namespace ckv::test {

inline Geometry RowsGeometry(uint32_t layers = 2) {
  Geometry geometry;
  geometry.model = "test/rows";
  geometry.revision = "r1";
  geometry.layers = layers;
  geometry.d_qk = 40;
  geometry.d_v = 32;
  geometry.d_rope = 8;
  geometry.softmax_scale = 0.2f;
  return geometry;
}

// Random rows of `token_count` tokens from `base_position` on, as a file of rows.
struct RowsOfFile {
  RowsOfFile(uint32_t token_count, uint64_t base_position, uint32_t seed, uint32_t layers = 2)
      : geometry(RowsGeometry(layers)), position(base_position), token_ids(token_count) {
    std::mt19937 rng(seed);
    for (int32_t& id : token_ids) id = static_cast<int32_t>(rng() % 1000);
    values.resize(size_t{layers} * token_count * geometry.d_qk);
    for (uint16_t& value : values) value = static_cast<uint16_t>(rng() & 0xbfff);  // finite
  }

  std::span<const std::byte> layer(uint32_t index) const {
    const size_t bytes = token_ids.size() * geometry.row_bytes();
    return std::as_bytes(std::span(values)).subspan(index * bytes, bytes);
  }

  // Writes the file in the layout of ckvctl corpus export.
  std::string Write(const std::string& name) const {
    std::vector<TensorToWrite> tensors;
    const uint64_t count = token_ids.size();
    for (uint32_t i = 0; i < geometry.layers; ++i) {
      tensors.push_back({"layers." + std::to_string(i) + ".ckv",
                         TensorDtype::kBf16,
                         {count, geometry.d_qk},
                         layer(i)});
    }
    tensors.push_back(
        {"token_ids", TensorDtype::kI32, {count}, std::as_bytes(std::span(token_ids))});
    std::string path = TempPath(name);
    const absl::Status status =
        WriteSafetensors(path, ctl::RowFileMetadata(geometry, position), tensors);
    EXPECT_TRUE(status.ok()) << status;
    return path;
  }

  Geometry geometry;
  uint64_t position;
  std::vector<int32_t> token_ids;
  std::vector<uint16_t> values;  // bf16 [layers][token_count][d_qk]
};

inline std::string WriteTestFile(const std::string& name, const std::string& text) {
  std::string path = TempPath(name);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

inline std::string ReadTestFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A .npy file, version 1.0.
inline std::string WriteNpy(const std::string& name, const std::string& descr,
                            const std::string& shape, std::span<const std::byte> data) {
  std::string text = "\x93NUMPY\x01";
  text += '\0';
  const std::string header =
      "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  text += static_cast<char>(header.size());
  text += '\0';
  text += header;
  text.append(reinterpret_cast<const char*>(data.data()), data.size());
  return WriteTestFile(name, text);
}

// The smallest reference engine.
inline std::shared_ptr<const Engine> SmallEngine() {
  ReferenceConfig config;
  config.layers = 2;
  config.heads = 2;
  config.hidden = 32;
  config.d_nope = 8;
  config.d_rope = 8;
  config.d_latent = 16;
  config.d_value = 8;
  config.mlp = 32;
  auto engine = ReferenceEngine::Create(config);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

}  // namespace ckv::test
