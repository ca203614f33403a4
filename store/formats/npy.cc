// Reads a .npy file. Read, in order: the magic and version; the length of the header; ReadHeader,
// which DictReader parses without Python; the type; the shape, whose product must be the bytes that
// follow. Any other text in the header is refused. Elements are copied later, from their place.

#include "store/formats/npy.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "store/formats/safetensors_header.h"

namespace ckv {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kVersionEnd = 8;  // the magic, a major and a minor version of a byte each

absl::Status BadFile(std::string_view what) {
  return absl::InvalidArgumentError(std::string(what));
}

// The header's dict, read from left to right: strings, True and False, tuples of whole numbers, and
// nothing else of Python.
class DictReader {
 public:
  explicit DictReader(std::string_view text) : rest_(text) {}

  // Skips blanks, then takes `c` if it is next.
  bool Take(char c) {
    SkipBlanks();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  // A string without escapes, in either kind of quotes.
  std::optional<std::string_view> String() {
    const char estimate = Take('\'') ? '\'' : Take('"') ? '"' : '\0';
    if (estimate == '\0') return std::nullopt;
    const size_t end = rest_.find(estimate);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view text = rest_.substr(0, end);
    if (text.find_first_of("\\\n") != std::string_view::npos) return std::nullopt;
    rest_.remove_prefix(end + 1);
    return text;
  }

  std::optional<bool> Bool() {
    for (const auto& [word, value] : {std::pair("True", true), std::pair("False", false)}) {
      if (!Take(word[0])) continue;
      if (!rest_.starts_with(word + 1)) return std::nullopt;
      rest_.remove_prefix(std::strlen(word + 1));
      return value;
    }
    return std::nullopt;
  }

  std::optional<uint64_t> Number() {
    SkipBlanks();
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc()) return std::nullopt;
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return value;
  }

  // "()", "(5,)", "(2, 3)": as Python writes a tuple, of at most kNpyRankMax numbers.
  std::optional<std::vector<uint64_t>> Tuple() {
    if (!Take('(')) return std::nullopt;
    std::vector<uint64_t> values;
    bool comma = true;
    while (!Take(')')) {
      const std::optional<uint64_t> value = Number();
      if (!comma || !value || values.size() == kNpyRankMax) return std::nullopt;
      values.push_back(*value);
      comma = Take(',');
    }
    if (values.size() == 1 && !comma) return std::nullopt;  // "(5)" is a number
    return values;
  }

  bool AtEnd() {
    SkipBlanks();
    return rest_.empty();
  }

 private:
  void SkipBlanks() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\n"), rest_.size()));
  }

  std::string_view rest_;
};

absl::StatusOr<NpyDtype> ParseDtype(std::string_view text) {
  const auto refuse = [text](std::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrFormat("header: descr %s: %s", QuotedName(text), why));
  };
  if (text.size() < 3) return refuse("must be an order, a kind and a size, like '<f4'");
  NpyDtype dtype;
  dtype.kind = text[1];
  const auto [end, error] =
      std::from_chars(text.data() + 2, text.data() + text.size(), dtype.item_bytes);
  if (error != std::errc() || end != text.data() + text.size()) {
    return refuse("must be an order, a kind and a size, like '<f4'");
  }
  if (std::string_view("iufbV").find(dtype.kind) == std::string_view::npos) {
    return refuse("elements must be of a kind i, u, f, b or V");
  }
  if (dtype.item_bytes == 0 || dtype.item_bytes > kNpyItemBytesMax) {
    return refuse(absl::StrFormat("elements must have 1 to %d bytes", kNpyItemBytesMax));
  }
  if (text[0] == '>') return refuse("big-endian; save it with astype of '<'");
  if (text[0] != '<' && text[0] != '|') return refuse("its order must be '<' or '|'");
  return dtype;
}

}  // namespace

std::string NpyDtype::ToString() const { return absl::StrFormat("%c%d", kind, item_bytes); }

std::string NpyFile::ShapeText() const {
  std::string text = dtype_.ToString() + " [";
  for (size_t i = 0; i < shape_.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape_[i]);
  }
  return text + "]";
}

absl::Status NpyFile::ReadHeader(std::string_view header) {
  const auto malformed = [] {
    return BadFile(
        "header: not a dict of descr, fortran_order and shape, as NumPy writes it for an array of "
        "plain numbers");
  };
  std::optional<std::string_view> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<uint64_t>> shape;
  DictReader reader(header);
  if (!reader.Take('{')) return malformed();
  for (bool comma = true; !reader.Take('}'); comma = reader.Take(',')) {
    const std::optional<std::string_view> key = reader.String();
    if (!comma || !key || !reader.Take(':')) return malformed();
    // Each key once: one that is there already falls through to the end.
    if (*key == "descr" && !descr) {
      descr = reader.String();
      if (!descr) return malformed();
    } else if (*key == "fortran_order" && !fortran_order) {
      fortran_order = reader.Bool();
      if (!fortran_order) return malformed();
    } else if (*key == "shape" && !shape) {
      shape = reader.Tuple();
      if (!shape) return malformed();
    } else {
      return BadFile(
          absl::StrFormat("header: the key %s is not known, or there twice", QuotedName(*key)));
    }
  }
  if (!reader.AtEnd() || !descr || !fortran_order || !shape) return malformed();
  if (*fortran_order) {
    return BadFile("Fortran order; save it in C order, with numpy.ascontiguousarray");
  }
  CKV_ASSIGN_OR_RETURN(dtype_, ParseDtype(*descr));
  shape_ = *std::move(shape);
  return absl::OkStatus();
}

absl::Status NpyFile::Read(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  constexpr size_t kLongestBegin = kVersionEnd + 4;
  CKV_RETURN_IF_ERROR(Need(bytes.first(std::min(kLongestBegin, bytes.size()))));
  if (!text.starts_with(kMagic) || text.size() < kVersionEnd) return BadFile("not a .npy file");
  const auto major = static_cast<uint8_t>(text[6]), minor = static_cast<uint8_t>(text[7]);
  if (major < 1 || major > 3 || minor != 0) {
    return BadFile(
        absl::StrFormat(".npy version %d.%d, this ckv reads 1.0, 2.0 and 3.0", major, minor));
  }
  uint32_t header_bytes = 0;
  const size_t length_bytes = major == 1 ? 2 : 4;
  const size_t header_begin = kVersionEnd + length_bytes;
  if (text.size() < header_begin) return BadFile("cut off before its header");
  std::memcpy(&header_bytes, text.data() + kVersionEnd, length_bytes);
  if (header_bytes > kNpyHeaderBytesMax || header_bytes > text.size() - header_begin) {
    return BadFile(absl::StrFormat("header: %d bytes, of a file of %d; limit %d", header_bytes,
                                   text.size(), kNpyHeaderBytesMax));
  }
  CKV_RETURN_IF_ERROR(Need(bytes.subspan(header_begin, header_bytes)));
  CKV_RETURN_IF_ERROR(ReadHeader(text.substr(header_begin, header_bytes)));
  data_ = bytes.subspan(header_begin + header_bytes);
  uint64_t due = dtype_.item_bytes;
  bool empty = false;
  for (const uint64_t size : shape_) {
    empty |= size == 0;
    // Zero axes count as one: a product of a part of the axes must not overflow either.
    if (__builtin_mul_overflow(due, std::max<uint64_t>(size, 1), &due)) {
      return BadFile("shape: its size overflows");
    }
  }
  if (empty) due = 0;
  if (due != data_.size()) {
    return BadFile(absl::StrFormat("%s takes %d bytes, and %d follow the header", ShapeText(), due,
                                   data_.size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<NpyFile> NpyFile::Parse(std::span<const std::byte> bytes) {
  NpyFile file;
  CKV_RETURN_IF_ERROR(file.Read(bytes));
  return file;
}

absl::StatusOr<NpyFile> NpyFile::Open(const std::string& path, FileReading reading) {
  NpyFile file;
  CKV_ASSIGN_OR_RETURN(file.file_, FileBytes::Open(path, reading));
  CKV_RETURN_IF_ERROR(AnnotateOnce(file.Read(file.file_->bytes()), path));
  return file;
}

absl::Status NpyFile::Need(std::span<const std::byte> part) const {
  return file_ == nullptr ? absl::OkStatus() : file_->Need(part);
}

absl::Status NpyFile::Copy(std::span<const std::byte> part, std::byte* out) const {
  if (file_ != nullptr) return file_->Copy(part, out);
  if (!part.empty()) std::memcpy(out, part.data(), part.size());
  return absl::OkStatus();
}

absl::Status NpyFile::CheckUnchanged() const {
  return file_ == nullptr ? absl::OkStatus() : file_->CheckUnchanged();
}

}  // namespace ckv
