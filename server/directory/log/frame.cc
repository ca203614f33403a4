// First the headers of files and the encoding of frames, then their reading. Next checks a frame
// from the outside to the inside: its header, its length, its payload, its end. Bytes that fail a
// check are classified by Judge as unfinished or damaged (frame.h has the rule). It looks for a
// sector of zeros, and for a later frame, which proves that this one was durable.

#include "server/directory/log/frame.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/base/xxh3.h"

namespace ckv {
namespace {

static_assert(std::endian::native == std::endian::little,
              "files are written in the byte order of memory");

constexpr char kFileMagic[] = "ckvdirlg";
constexpr char kFrameMagic[] = "FRAM";
constexpr char kFrameEnd[] = "endF";
constexpr uint64_t kSectorBytes = 512;
// How much is read at a time to examine a bad frame.
constexpr uint64_t kLookBytes = uint64_t{1} << 20;

struct RawFileHeader {
  char magic[8];
  uint32_t version;
  uint32_t kind;
  uint64_t number;
  uint64_t checksum;
};
static_assert(sizeof(RawFileHeader) == kLogFileHeaderBytes);
static_assert(offsetof(RawFileHeader, checksum) == 24);

struct RawFrameHeader {
  char magic[4];
  uint32_t payload_bytes;
  uint64_t sequence;
  uint64_t payload_checksum;
  uint64_t checksum;
};
static_assert(sizeof(RawFrameHeader) == kFrameHeaderBytes);
static_assert(offsetof(RawFrameHeader, checksum) == 24);

template <typename Raw>
uint64_t HeaderChecksum(const Raw& raw) {
  return XXH3_64bits(&raw, offsetof(Raw, checksum));
}

uint64_t PayloadChecksum(std::string_view payload) {
  return XXH3_64bits(payload.data(), payload.size());
}

template <typename Raw>
absl::Status ReadRaw(File& file, uint64_t offset, Raw& raw) {
  return file.ReadAt(offset, std::as_writable_bytes(std::span(&raw, 1)));
}

bool IsZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

std::string EncodeLogFileHeader(LogFileKind kind, uint64_t number) {
  RawFileHeader raw = {};
  std::memcpy(raw.magic, kFileMagic, sizeof(raw.magic));
  raw.version = kLogFileVersion;
  raw.kind = static_cast<uint32_t>(kind);
  raw.number = number;
  raw.checksum = HeaderChecksum(raw);
  return std::string(reinterpret_cast<const char*>(&raw), sizeof(raw));
}

absl::Status ReadLogFileHeader(File& file, LogFileKind kind, uint64_t number) {
  CKV_ASSIGN_OR_RETURN(const uint64_t bytes, file.Size());
  if (bytes < kLogFileHeaderBytes)
    return absl::DataLossError(absl::StrFormat("it has %d bytes and no header", bytes));
  RawFileHeader raw = {};
  CKV_RETURN_IF_ERROR(ReadRaw(file, 0, raw));
  if (std::memcmp(raw.magic, kFileMagic, sizeof(raw.magic)) != 0 ||
      raw.checksum != HeaderChecksum(raw)) {
    return absl::DataLossError("its header is damaged");
  }
  if (raw.version > kLogFileVersion) {
    return absl::FailedPreconditionError(
        absl::StrFormat("its format is %d, this build reads up to %d: it was written by a later "
                        "version of ckv: upgrade this one",
                        raw.version, kLogFileVersion));
  }
  if (raw.version != kLogFileVersion || raw.kind != static_cast<uint32_t>(kind) ||
      raw.number != number) {
    return absl::DataLossError(absl::StrFormat("its header is that of file %d, kind %d, format %d",
                                               raw.number, raw.kind, raw.version));
  }
  return absl::OkStatus();
}

std::string EncodeFrame(uint64_t sequence, std::string_view payload) {
  CKV_CHECK(!payload.empty() && payload.size() <= kFramePayloadBytesMax);
  RawFrameHeader raw = {};
  std::memcpy(raw.magic, kFrameMagic, sizeof(raw.magic));
  raw.payload_bytes = static_cast<uint32_t>(payload.size());
  raw.sequence = sequence;
  raw.payload_checksum = PayloadChecksum(payload);
  raw.checksum = HeaderChecksum(raw);
  std::string frame;
  frame.reserve(sizeof(raw) + payload.size() + kFrameEndBytes);
  frame.append(reinterpret_cast<const char*>(&raw), sizeof(raw));
  frame.append(payload);
  frame.append(kFrameEnd, kFrameEndBytes);
  return frame;
}

absl::StatusOr<std::optional<std::string_view>> FrameReader::Next() {
  const uint64_t left = file_bytes_ - std::min(offset_, file_bytes_);
  if (left == 0) return std::nullopt;
  if (left < kFrameHeaderBytes) return Judge(kFrameHeaderBytes, "");
  RawFrameHeader raw = {};
  CKV_RETURN_IF_ERROR(ReadRaw(file_, offset_, raw));
  if (std::memcmp(raw.magic, kFrameMagic, sizeof(raw.magic)) != 0 ||
      raw.checksum != HeaderChecksum(raw)) {
    return Judge(0, "the header of a frame is damaged");
  }
  if (raw.payload_bytes == 0 || raw.payload_bytes > kFramePayloadBytesMax)
    return absl::DataLossError(absl::StrFormat("a frame of %d bytes", raw.payload_bytes));
  if (raw.sequence != sequence_) {
    return absl::DataLossError(
        absl::StrFormat("frame %d where %d is due", raw.sequence, sequence_));
  }
  const uint64_t frame_bytes = kFrameHeaderBytes + uint64_t{raw.payload_bytes} + kFrameEndBytes;
  if (left < frame_bytes) return Judge(frame_bytes, "");
  payload_.resize(raw.payload_bytes + kFrameEndBytes);
  CKV_RETURN_IF_ERROR(
      file_.ReadAt(offset_ + kFrameHeaderBytes, std::as_writable_bytes(std::span(payload_))));
  const std::string_view payload(payload_.data(), raw.payload_bytes);
  if (PayloadChecksum(payload) != raw.payload_checksum ||
      std::memcmp(payload.data() + payload.size(), kFrameEnd, kFrameEndBytes) != 0) {
    return Judge(frame_bytes, "a frame's bytes are not those of its checksum");
  }
  last_offset_ = offset_;
  offset_ += frame_bytes;
  ++sequence_;
  return payload;
}

absl::StatusOr<std::optional<std::string_view>> FrameReader::Judge(uint64_t frame_bytes,
                                                                   std::string_view what) {
  const uint64_t end = offset_ + frame_bytes;
  bool torn = frame_bytes != 0 && file_bytes_ < end;
  if (!torn && frame_bytes == 0) {
    // A bad header is explained only by a zero sector where part of the header should be. A whole
    // frame behind it was begun after this one was durable, so the zeros were written later.
    CKV_ASSIGN_OR_RETURN(torn, HasZeroSector(offset_, offset_ + kFrameHeaderBytes, file_bytes_));
    CKV_ASSIGN_OR_RETURN(const bool later, torn ? HasLaterFrame() : false);
    torn &= !later;
  } else if (!torn && file_bytes_ == end) {
    CKV_ASSIGN_OR_RETURN(torn, HasZeroSector(offset_, end, end));
  }
  if (!torn) return absl::DataLossError(std::string(what));
  is_torn_ = true;
  return std::nullopt;
}

// Whether one of the sectors that [begin, end) touches is zero. Only the parts of sectors within
// [begin, until) are read.
absl::StatusOr<bool> FrameReader::HasZeroSector(uint64_t begin, uint64_t end, uint64_t until) {
  std::vector<std::byte> bytes;
  for (uint64_t at = begin; at < end;) {
    const uint64_t next =
        std::min((at / kSectorBytes + kLookBytes / kSectorBytes) * kSectorBytes, until);
    bytes.resize(next - at);
    CKV_RETURN_IF_ERROR(file_.ReadAt(at, bytes));
    for (uint64_t piece = at; piece < std::min(next, end);) {
      const uint64_t piece_end = std::min((piece / kSectorBytes + 1) * kSectorBytes, next);
      if (IsZero(std::span(bytes).subspan(piece - at, piece_end - piece))) return true;
      piece = piece_end;
    }
    at = next;
  }
  return false;
}

// Whether the bytes behind offset_ have the header of a later frame of this file.
absl::StatusOr<bool> FrameReader::HasLaterFrame() {
  std::vector<char> bytes;
  for (uint64_t at = offset_; at + kFrameHeaderBytes <= file_bytes_; at += kLookBytes) {
    bytes.resize(std::min(kLookBytes + kFrameHeaderBytes - 1, file_bytes_ - at));
    CKV_RETURN_IF_ERROR(file_.ReadAt(at, std::as_writable_bytes(std::span(bytes))));
    const std::string_view text(bytes.data(), bytes.size());
    for (size_t found = text.find(kFrameMagic); found != text.npos;
         found = text.find(kFrameMagic, found + 1)) {
      RawFrameHeader raw = {};
      if (text.size() - found < sizeof(raw)) break;
      std::memcpy(&raw, text.data() + found, sizeof(raw));
      if (raw.checksum == HeaderChecksum(raw) && raw.sequence > sequence_) return true;
    }
  }
  return false;
}

}  // namespace ckv
