// Reads and writes sequence states of llama.cpp: the token ids of one sequence and the keys of its
// cells, as llama_state_seq_save_file writes them. A file that is read is not trusted.
//
// A model with MLA has no values beside its keys: each key is a cKV row. All numbers are
// little-endian, and nothing is aligned to more than 4 bytes.
//
//   u32 magic "ggsq", u32 version 3
//   u32 count, i32 ids[count]
//   u32 streams, then for each stream:
//     u32 cells; the stream ends here if it is 0
//     cells x { i32 position, u32 1, i32 sequence }
//     u32 whether values are transposed, u32 layers
//     layers x { i32 type of the keys, u64 row bytes, rows[cells] }
//
// llama_state_seq_get_data has u32 0xaf143cd8 and i32 sequence before `streams`, and no ids.
// llama-server packs its ids: i32 -1, u32 1, u32 count, ids, u32 0 (the number of images).

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

// Types of keys that are read, by ggml's numbers.
enum class LlamaKeyType : int32_t { kF16 = 1, kBf16 = 30 };

// The state of one sequence. Immutable, so any thread may read it. Movable; spans it returns live
// as long as it does. Rows may start at any address: read them by memcpy. With FileReading::kParts
// they are read only by Copy.
class LlamaState {
 public:
  // Opens the file and checks all of it but the rows. The cells must be those of one sequence, in
  // order, at positions without a gap. Token ids, if there are any, are one a cell. Keys must be
  // bf16 or f16, with rows of one size in all layers, and nothing may follow them. Messages name
  // the path.
  //   NotFound            there is no such file.
  //   FailedPrecondition  another version of the format.
  //   InvalidArgument     it cannot be read, or something is wrong; the message says what, and how
  //                       the state can be saved right.
  static absl::StatusOr<LlamaState> Open(const std::string& path,
                                         FileReading reading = FileReading::kWhole);
  // Checks the bytes of a state that is in memory. They must outlive the result.
  //   FailedPrecondition, InvalidArgument  as for Open.
  static absl::StatusOr<LlamaState> Parse(std::span<const std::byte> bytes);
  // Whether a file at `path` begins as a state does.
  static bool IsOne(const std::string& path);

  // At least 1.
  uint32_t token_count() const { return token_count_; }
  // One a token, or none if the state has none.
  std::span<const int32_t> token_ids() const { return token_ids_; }
  // The position of the first token.
  uint32_t base_position() const { return base_position_; }
  // How many streams the cache has that the state was saved from.
  uint32_t stream_count() const { return stream_count_; }
  uint32_t layer_count() const { return static_cast<uint32_t>(layers_.size()); }
  // The bytes of one token at one layer.
  uint32_t row_bytes() const { return row_bytes_; }
  LlamaKeyType key_type() const { return key_type_; }
  // Returns the rows of tokens [token_begin, token_end) of one layer.
  std::span<const std::byte> Rows(uint32_t layer, uint32_t token_begin, uint32_t token_end) const;
  // Copies `part` of the spans above to `out`. With kParts it is read from the file on each call.
  //   InvalidArgument     the file cannot be read any more, or changed since it was opened.
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
  std::span<const int32_t> token_ids;  // one a token, at least one
  uint64_t base_position = 0;
  // If not 0, only the last so many tokens have cells, and rows.
  uint32_t cell_count = 0;
  uint32_t layer_count = 0;
  uint32_t row_bytes = 0;
  // Streams of the cache that is to load it: as many as it has sequences, or 1 if it is unified.
  // llama.cpp refuses another number.
  uint32_t stream_count = 1;
};

// Writes a state that llama_state_seq_load_file takes, layer by layer or in any other order. A
// regular file gets its name when Finish returns OK; otherwise nothing of it is left. Movable; one
// thread at a time.
class LlamaStateWriter {
 public:
  // Starts a file, and writes all but the rows.
  //   InvalidArgument     a number of `spec` is beyond its limit; says which.
  //   FailedPrecondition, Unavailable  as OutputFile.
  static absl::StatusOr<LlamaStateWriter> Create(const std::string& path,
                                                 const LlamaStateSpec& spec);

  // Writes rows of one layer, from this cell on.
  //   InvalidArgument     they are not whole rows, go past the last cell or layer, or are there
  //                       already.
  //   Unavailable         the file cannot be written; the message says why.
  absl::Status Write(uint32_t layer, uint32_t cell_begin, std::span<const std::byte> rows);
  // Brings the file to the device and gives it its name.
  //   InvalidArgument     rows are missing; the message says of which layer.
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
