// Reads a sequence state. ReadAll goes from the first byte to the last: ReadIds takes the magic,
// the version and the token ids, packed by llama-server or plain; ReadCells checks that the cells
// are one sequence without gaps; ReadLayers notes the place of each layer's keys; then nothing may
// follow but empty streams. Rows are copied later, from their place. Counts are bounded before they
// are used.

#include "store/formats/llama_state.h"

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/geometry.h"
#include "proto/token_id.h"
#include "store/formats/llama_state_words.h"

namespace ckv {
namespace {

constexpr int32_t kPackedIds = -1;  // llama-server's mark, which no token id is
constexpr uint32_t kPackedIdsVersion = 1;

constexpr const char* kSaveAgain =
    "save it again with keys of bf16: llama-server -ctk bf16 -ctv bf16";

absl::Status BadState(const std::string& what) { return absl::InvalidArgumentError(what); }

// The names that llama.cpp's -ctk takes.
std::string TypeName(int32_t type) {
  switch (type) {
    case 0:
      return "f32";
    case 2:
      return "q4_0";
    case 3:
      return "q4_1";
    case 6:
      return "q5_0";
    case 7:
      return "q5_1";
    case 8:
      return "q8_0";
    case 20:
      return "iq4_nl";
    default:
      return absl::StrFormat("ggml type %d", type);
  }
}

}  // namespace

// Takes numbers from the front of bytes; what is not there reads as 0, and Failed() says so.
class LlamaState::Reader {
 public:
  // `file` has the bytes, or is null if they are there.
  Reader(std::span<const std::byte> bytes, const FileBytes* file) : rest_(bytes), file_(file) {}

  template <typename Number>
  Number Take() {
    Number number = 0;
    const std::span<const std::byte> part = Take(sizeof(number));
    if (!is_read(part)) Need(part);
    if (!failed_) std::memcpy(&number, part.data(), sizeof(number));
    return number;
  }
  std::span<const std::byte> Take(uint64_t count) {
    failed_ |= count > rest_.size();
    if (failed_) return {};
    const std::span<const std::byte> part = rest_.first(count);
    rest_ = rest_.subspan(count);
    return part;
  }
  bool Has(uint64_t count) const { return !failed_ && count <= rest_.size(); }
  // Reads the next `count` bytes of the file at once: cells are many numbers.
  void NeedNext(uint64_t count) {
    if (Has(count)) Need(rest_.first(count));
  }
  // Reads a part that was taken.
  void Need(std::span<const std::byte> part) {
    if (failed_ || file_ == nullptr || part.empty()) return;
    file_error_ = file_->Need(part);
    failed_ = !file_error_.ok();
    read_ = part;
  }
  // The file's error, if that is why it failed.
  const absl::Status& file_error() const { return file_error_; }
  bool failed() const { return failed_; }
  size_t left() const { return rest_.size(); }

 private:
  bool is_read(std::span<const std::byte> part) const {
    return part.data() >= read_.data() && part.data() + part.size() <= read_.data() + read_.size();
  }

  std::span<const std::byte> rest_;
  const FileBytes* const file_;
  std::span<const std::byte> read_;  // the part of the file that was read last
  absl::Status file_error_;
  bool failed_ = false;
};

absl::Status LlamaState::ReadIds(Reader& reader) {
  const auto magic = reader.Take<uint32_t>();
  if (magic == kLlamaDataMagic) {
    reader.Take<int32_t>();  // the sequence that it was
    return absl::OkStatus();
  }
  if (magic == kLlamaSessionMagic) {
    return BadState(
        "a session of llama.cpp, the cells of all sequences\n  save one sequence: "
        "llama_state_seq_save_file, or a slot of llama-server");
  }
  if (magic != kLlamaFileMagic || reader.failed()) {
    return BadState("not a sequence state of llama.cpp");
  }
  const auto version = reader.Take<uint32_t>();
  if (reader.failed()) return BadState("ends before its version");
  if (version != kLlamaStateVersion) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "sequence state of version %d, this ckv reads version %d", version, kLlamaStateVersion));
  }
  const auto count = reader.Take<uint32_t>();
  if (!reader.Has(uint64_t{count} * sizeof(int32_t))) {
    return BadState(absl::StrFormat("%d token ids, and the file ends before that", count));
  }
  const std::span<const std::byte> ids = reader.Take(uint64_t{count} * sizeof(int32_t));
  reader.Need(ids);
  token_ids_.resize(count);
  if (count > 0) std::memcpy(token_ids_.data(), ids.data(), ids.size());
  return UnpackIds();
}

absl::Status LlamaState::UnpackIds() {
  if (!token_ids_.empty() && token_ids_.front() == kPackedIds) {
    const size_t words = token_ids_.size();
    // A mark, a version and a count; behind the ids the number of images, which must be 0.
    if (words < 4 || static_cast<uint32_t>(token_ids_[1]) != kPackedIdsVersion) {
      return BadState("token ids that llama-server packed in a way that is not known");
    }
    if (static_cast<uint32_t>(token_ids_[2]) != words - 4 || token_ids_.back() != 0) {
      return BadState(
          "token ids that llama-server packed, with images or sound among them\n  ckv holds "
          "tokens of text");
    }
    token_ids_.pop_back();
    token_ids_.erase(token_ids_.begin(), token_ids_.begin() + 3);
  }
  const absl::Status ids = CheckTokenIds("token_ids", token_ids_);
  return ids.ok() ? ids : BadState(std::string(ids.message()));
}

absl::Status LlamaState::ReadCells(Reader& reader) {
  constexpr uint64_t kCellBytes = 12;
  if (token_count_ > kLlamaTokenCountMax || !reader.Has(token_count_ * kCellBytes)) {
    return BadState(absl::StrFormat("%d cells, and the file ends before that", token_count_));
  }
  reader.NeedNext(token_count_ * kCellBytes);
  int64_t due = 0;
  for (uint32_t i = 0; i < token_count_; ++i) {
    const auto position = reader.Take<int32_t>();
    const auto sequences = reader.Take<uint32_t>();
    reader.Take<int32_t>();
    if (sequences != 1) {
      return BadState(
          absl::StrFormat("cell %d is of %d sequences\n  a model whose cells carry more than a "
                          "position, like those "
                          "for images, is not one with MLA",
                          i, sequences));
    }
    if (i == 0) due = position;
    if (position < 0) return BadState(absl::StrFormat("cell %d is at position %d", i, position));
    if (position > due) {
      return BadState(absl::StrFormat(
          "cell %d is at position %d, behind a gap from %d on\n  prefill the sequence in one go, "
          "and save it before anything is taken out of it",
          i, position, due));
    }
    if (position < due) {
      return BadState(absl::StrFormat(
          "cell %d is at position %d and the one before at %d: out of order\n  prefill the "
          "sequence into an empty one, and save it before anything is taken out of it",
          i, position, due - 1));
    }
    if (i == 0) base_position_ = static_cast<uint32_t>(position);
    ++due;
  }
  return absl::OkStatus();
}

absl::Status LlamaState::ReadLayers(Reader& reader) {
  reader.Take<uint32_t>();  // whether values are transposed: there are none
  const auto layers = reader.Take<uint32_t>();
  if (layers == 0 || layers > kLayerCountMax) {
    return BadState(absl::StrFormat("%d layers, must be 1 to %d", layers, kLayerCountMax));
  }
  for (uint32_t layer = 0; layer < layers; ++layer) {
    const auto type = reader.Take<int32_t>();
    const auto row_bytes = reader.Take<uint64_t>();
    if (reader.failed()) return BadState(absl::StrFormat("ends before layer %d", layer));
    if (type != static_cast<int32_t>(LlamaKeyType::kF16) &&
        type != static_cast<int32_t>(LlamaKeyType::kBf16)) {
      return BadState(absl::StrFormat("keys of %s at layer %d, must be bf16 or f16\n  %s",
                                      TypeName(type), layer, kSaveAgain));
    }
    if (layer == 0) {
      key_type_ = LlamaKeyType{type};
      row_bytes_ = static_cast<uint32_t>(row_bytes);
    }
    if (row_bytes == 0 || row_bytes % 2 != 0 || row_bytes > kLlamaRowBytesMax) {
      return BadState(absl::StrFormat(
          "keys of %d bytes at layer %d, limit %d and even\n  is it a model with MLA?", row_bytes,
          layer, kLlamaRowBytesMax));
    }
    if (LlamaKeyType{type} != key_type_ || row_bytes != row_bytes_) {
      return BadState(
          absl::StrFormat("layer %d has keys of another size or type than layer 0", layer));
    }
    layers_.push_back(reader.Take(row_bytes * token_count_));
    if (reader.failed()) return BadState(absl::StrFormat("ends within layer %d", layer));
  }
  return absl::OkStatus();
}

absl::Status LlamaState::Read(std::span<const std::byte> bytes) {
  Reader reader(bytes, file_.get());
  const absl::Status status = ReadAll(reader);
  return reader.file_error().ok() ? status : reader.file_error();
}

absl::Status LlamaState::ReadAll(Reader& reader) {
  CKV_RETURN_IF_ERROR(ReadIds(reader));
  stream_count_ = reader.Take<uint32_t>();
  if (stream_count_ == 0 || stream_count_ > kLlamaStreamCountMax) {
    return BadState(
        absl::StrFormat("%d streams, must be 1 to %d", stream_count_, kLlamaStreamCountMax));
  }
  for (uint32_t stream = 0; stream < stream_count_; ++stream) {
    const auto cells = reader.Take<uint32_t>();
    if (reader.failed()) {
      return BadState(absl::StrFormat("ends before stream %d of %d", stream, stream_count_));
    }
    // The number of cells in the streams after this one is 0: so many bytes must be left.
    const size_t empty_bytes = (stream_count_ - 1 - stream) * sizeof(uint32_t);
    if (cells == 0) continue;
    if (token_count_ != 0) return BadState("cells in two streams, and one sequence has one");
    token_count_ = cells;
    CKV_RETURN_IF_ERROR(ReadCells(reader));
    CKV_RETURN_IF_ERROR(ReadLayers(reader));
    if (reader.left() != empty_bytes) {
      return BadState(absl::StrFormat(
          "%d bytes follow the keys, and %d should: a model with values apart from its keys, or "
          "with "
          "another cache\n  ckv holds rows of MLA, whose keys are their values, too",
          reader.left(), empty_bytes));
    }
  }
  if (reader.left() != 0) return BadState(absl::StrFormat("%d bytes too many", reader.left()));
  if (token_count_ == 0) return BadState("the sequence has no cells\n  save it after a prefill");
  if (!token_ids_.empty() && token_ids_.size() != token_count_) {
    return BadState(absl::StrFormat(
        "%d token ids and %d cells\n  the ids that are saved with a state must be those of its "
        "cells",
        token_ids_.size(), token_count_));
  }
  return absl::OkStatus();
}

absl::StatusOr<LlamaState> LlamaState::Parse(std::span<const std::byte> bytes) {
  LlamaState state;
  CKV_RETURN_IF_ERROR(state.Read(bytes));
  return state;
}

absl::StatusOr<LlamaState> LlamaState::Open(const std::string& path, FileReading reading) {
  LlamaState state;
  CKV_ASSIGN_OR_RETURN(state.file_, FileBytes::Open(path, reading));
  CKV_RETURN_IF_ERROR(AnnotateOnce(state.Read(state.file_->bytes()), path));
  return state;
}

bool LlamaState::IsOne(const std::string& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return false;  // a pipe would wait
  std::ifstream in(path, std::ios::binary);
  uint32_t magic = 0;
  std::array<char, sizeof(magic)> start{};
  if (!in || !in.read(start.data(), start.size())) return false;
  std::memcpy(&magic, start.data(), sizeof(magic));
  return magic == kLlamaFileMagic || magic == kLlamaDataMagic || magic == kLlamaSessionMagic;
}

std::span<const std::byte> LlamaState::Rows(uint32_t layer, uint32_t token_begin,
                                            uint32_t token_end) const {
  return layers_.at(layer).subspan(size_t{token_begin} * row_bytes_,
                                   size_t{token_end - token_begin} * row_bytes_);
}

absl::Status LlamaState::Copy(std::span<const std::byte> part, std::byte* out) const {
  if (file_ != nullptr) return file_->Copy(part, out);
  if (!part.empty()) std::memcpy(out, part.data(), part.size());
  return absl::OkStatus();
}

absl::Status LlamaState::CheckUnchanged() const {
  return file_ == nullptr ? absl::OkStatus() : file_->CheckUnchanged();
}

}  // namespace ckv
