// Any bytes as a safetensors file and as a file of rows: what is accepted must hold what the
// headers promise, and every byte it gives out must be there to read.

#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/base/status.h"
#include "store/formats/import.h"
#include "store/formats/safetensors.h"
#include "store/memory/chunk.h"

namespace ckv {
namespace {

// Reads every byte, so that a sanitizer sees one that is not there.
uint64_t Touch(std::span<const std::byte> bytes) { return ChecksumOf(bytes); }

bool IsInside(std::span<const std::byte> part, std::span<const std::byte> whole) {
  return part.empty() ||
         (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}

void CheckFile(const SafetensorsFile& file, std::span<const std::byte> bytes) {
  uint64_t data_bytes = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    CKV_CHECK(IsInside(tensor.data, bytes));
    uint64_t elements = 1;
    for (const uint64_t size : tensor.shape) elements *= size;
    CKV_CHECK(tensor.shape.size() <= kTensorRankMax && elements == tensor.element_count());
    CKV_CHECK(elements * TensorDtypeBytes(tensor.dtype) == tensor.data.size());
    CKV_CHECK(file.Tensor(name)->data.data() == tensor.data.data());
    Touch(tensor.data);
    data_bytes += tensor.data.size();
  }
  CKV_CHECK(data_bytes <= bytes.size() - 8);
  CKV_CHECK(!file.Tensor("no tensor has this name, or the fuzzer won").ok());
}

void CheckRows(const RowFile& file, std::span<const std::byte> bytes) {
  const Geometry& geometry = file.geometry();
  CKV_CHECK(ValidateGeometry(geometry).ok());
  const uint32_t count = static_cast<uint32_t>(file.token_ids().size());
  for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
    const std::span<const std::byte> rows = file.Rows(layer, 0, count);
    CKV_CHECK(IsInside(rows, bytes) && rows.size() == size_t{count} * geometry.row_bytes());
    Touch(rows);
  }
  // What was imported is what a holder accepts.
  ChunkId parent;
  for (const TokenRange range : CutFixed(count, count / 2 + 1)) {
    const ChunkInfo info =
        DescribeChunk(geometry, parent, file.base_position(), file.token_ids(), range,
                      [&](uint32_t layer) { return file.Rows(layer, range.begin, range.end); });
    CKV_CHECK(ValidateChunkInfo(info, geometry).ok());
    parent = info.id;
  }
}

}  // namespace
}  // namespace ckv

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  const auto file = ckv::SafetensorsFile::Parse(bytes);
  if (file.ok()) {
    ckv::CheckFile(*file, bytes);
  } else {
    CKV_CHECK(absl::IsInvalidArgument(file.status()));
  }
  const auto rows = ckv::RowFile::Parse(bytes);
  CKV_CHECK(file.ok() || !rows.ok());
  if (rows.ok()) {
    ckv::CheckRows(*rows, bytes);
  } else {
    CKV_CHECK(absl::IsInvalidArgument(rows.status()));
  }
  // As text it is also the JSON inside a file of rows.
  ckv::ParseRopeScaling({reinterpret_cast<const char*>(data), size}).status().IgnoreError();
  return 0;
}
