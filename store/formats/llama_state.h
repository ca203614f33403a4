// Reads and writes sequence states of llama.cpp: the token ids of one sequence and the keys of its
// cells, as llama_state_seq_save_file writes them. Files are not trusted.
//
// A model with MLA has keys and no values: each key is a cKV row. All numbers are little-endian,
// and nothing is aligned to more than 4 bytes.
//
//   u32 magic "ggsq", u32 version 3
//   u32 count, i32 ids[count]
//   u32 streams, then for each stream:
//     u32 cells; the stream ends here if it is 0
//     cells x { i32 position, u32 1, i32 sequence }
//     u32 whether values are transposed, u32 layers
//     layers x { i32 type of the keys, u64 row bytes, rows[cells] }
//
// The output of llama_state_seq_get_data has u32 0xaf143cd8 and i32 sequence before `streams`, and
// no ids. llama-server packs its ids: i32 -1, u32 1, u32 count, ids, u32 0 (the number of images).

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/formats/file_bytes.h"
#include "store/formats/output_file.h"

namespace ckv {

inline constexpr uint32_t kLlamaStateVersion = 3;
inline constexpr uint32_t kLlamaStreamCountMax = 256;      // llama.cpp's LLAMA_MAX_SEQ
inline constexpr uint32_t kLlamaTokenCountMax = 1u << 30;  // cells; positions are i32
inline constexpr uint64_t kLlamaRowBytesMax = 2048;  // kRowWidthMax (proto/geometry.h) in bf16

// The supported types of keys, with ggml's numbers.
enum class LlamaKeyType : int32_t { kF16 = 1, kBf16 = 30 };

// The state of one sequence. Immutable, so any thread may read it. Movable; its spans are valid as
// long as it lives. Rows may start at any address: read them by memcpy. With FileReading::kParts,
// only Copy reads them.
class LlamaState {
 public:
  // Opens the file and checks everything except the rows. The cells must be those of one sequence,
  // in order, at positions without a gap. There must be one token id per cell, or none. Keys must
  // be bf16 or f16, with rows of one size in all layers, and nothing may follow them. Messages name
  // the path.
  //   NotFound            there is no such file.
  //   FailedPrecondition  another version of the format.
  //   InvalidArgument     the file cannot be read, or is malformed; the message has the reason, and
  //                       how to save the state correctly.
  static absl::StatusOr<LlamaState> Open(const std::string& path,
                                         FileReading reading = FileReading::kWhole);
  // Checks the bytes of a state that is in memory. They must outlive the result.
  //   FailedPrecondition, InvalidArgument  as for Open.
  static absl::StatusOr<LlamaState> Parse(std::span<const std::byte> bytes);
  // Whether the regular file at `path` begins with the magic number of a state, or of a session,
  // which Open refuses with advice.
  static bool IsOne(const std::string& path);

  // At least 1.
  uint32_t token_count() const { return token_count_; }
  // One per token, or none if the state has none.
  std::span<const int32_t> token_ids() const { return token_ids_; }
  // The position of the first token.
  uint32_t base_position() const { return base_position_; }
  // The number of streams of the cache that the state was saved from.
  uint32_t stream_count() const { return stream_count_; }
  uint32_t layer_count() const { return static_cast<uint32_t>(layers_.size()); }
  // The bytes of one token at one layer.
  uint32_t row_bytes() const { return row_bytes_; }
  LlamaKeyType key_type() const { return key_type_; }
  // Returns the rows of tokens [token_begin, token_end) of one layer.
  std::span<const std::byte> Rows(uint32_t layer, uint32_t token_begin, uint32_t token_end) const;
  // Copies `part` of the spans above to `out`. With kParts, each call reads it from the file.
  //   InvalidArgument     the file can no longer be read, or changed since it was opened.
  absl::Status Copy(std::span<const std::byte> part, std::byte* out) const;
  // Checks that the file is unchanged since it was opened (FileBytes).
  absl::Status CheckUnchanged() const;

 private:
  class Reader;
  LlamaState() = default;
  absl::Status Read(std::span<const std::byte> bytes);
  absl::Status ReadAll(Reader& reader);
  absl::Status ReadIds(Reader& reader);
  absl::Status UnpackIds();
  absl::Status ReadCells(Reader& reader);
  absl::Status ReadLayers(Reader& reader);

  std::shared_ptr<const FileBytes> file_;  // null after Parse
  std::vector<int32_t> token_ids_;
  uint32_t token_count_ = 0;
  uint32_t base_position_ = 0;
  uint32_t stream_count_ = 0;
  uint32_t row_bytes_ = 0;
  LlamaKeyType key_type_ = LlamaKeyType::kBf16;
  std::vector<std::span<const std::byte>> layers_;
};

// The shape of a state to write. Its keys are bf16.
struct LlamaStateSpec {
  std::span<const int32_t> token_ids;  // one per token, at least one
  uint64_t base_position = 0;
  // If not 0, only this many of the last tokens have cells and rows.
  uint32_t cell_count = 0;
  uint32_t layer_count = 0;
  uint32_t row_bytes = 0;
  // Streams of the cache that will load the state: its number of sequences, or 1 if it is unified.
  // llama.cpp refuses any other number.
  uint32_t stream_count = 1;
};

// Writes a state that llama_state_seq_load_file can load. Rows may be written in any order. A
// regular file gets its name when Finish returns OK; otherwise the unfinished file is removed.
// Movable; used by one thread at a time.
class LlamaStateWriter {
 public:
  // Creates the file, and writes everything except the rows.
  //   InvalidArgument     a number of `spec` is out of its range; the message names it.
  //   FailedPrecondition, Unavailable  as OutputFile.
  static absl::StatusOr<LlamaStateWriter> Create(const std::string& path,
                                                 const LlamaStateSpec& spec);

  // Writes rows of one layer, beginning with cell `cell_begin`.
  //   InvalidArgument     `rows` are not whole rows, extend past the last cell or layer, or were
  //                       written already.
  //   Unavailable         the file cannot be written; the message has the reason.
  absl::Status Write(uint32_t layer, uint32_t cell_begin, std::span<const std::byte> rows);
  // Flushes the file to the device and gives it its name.
  //   InvalidArgument     rows are missing; the message names the layer.
  //   Unavailable         as Write.
  absl::Status Finish() &&;

 private:
  LlamaStateWriter(OutputFile file, const LlamaStateSpec& spec);
  uint64_t LayerBegin(uint32_t layer) const;

  OutputFile file_;
  uint32_t cell_count_;
  uint32_t row_bytes_;
  uint64_t layers_begin_bytes_ = 0;
  // For each layer, whether the row of a cell is written, and how many are.
  std::vector<std::vector<bool>> written_;
  std::vector<uint32_t> written_count_;
};

}  // namespace ckv
