// The frames of a log file: how they are encoded, checked and read.
//
// Byte by byte, version 1. Integers are little-endian, checksums XXH3-64.
//
//   offset  bytes  header of a file
//        0      8  magic "ckvdirlg"
//        8      4  version: 1
//       12      4  kind: 1 log, 2 snapshot
//       16      8  number of the file, as in its name
//       24      8  checksum of bytes [0, 24)
//
//   offset  bytes  frame
//        0      4  magic "FRAM"
//        4      4  payload_bytes
//        8      8  sequence: 0, 1, 2... in each file
//       16      8  checksum of the payload
//       24      8  checksum of bytes [0, 24)
//       32         payload, then 4 bytes "endF"
//
// A frame is written by one call and made durable before the next one begins. So only the last
// frame of a log can be unfinished, and no acknowledged change follows it.
//
// Unfinished or damaged: an unfinished frame is cut, because its changes were never acknowledged.
// Damage is refused, because an acknowledged change may be in it. A frame counts as unfinished in
// two cases only. First, the file ends inside it, as after a kill during a write. Second, it is the
// last one and a whole 512-byte sector of it is zero. A power loss causes that on a file system
// that extends a file before it writes the bytes. A frame begins and ends with bytes that are not
// zero, and no payload has 512 zeros in a row (server/directory/log/change.h). So no flipped byte
// of a whole frame looks like either case.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/disk/file_system.h"

namespace ckv {

inline constexpr uint32_t kLogFileVersion = 1;
inline constexpr uint32_t kLogFileHeaderBytes = 32;
inline constexpr uint32_t kFrameHeaderBytes = 32;
inline constexpr uint32_t kFrameEndBytes = 4;
// A corpus of kCorpusChunkCountMax chunks with 8 holders each takes 115 MB.
inline constexpr uint32_t kFramePayloadBytesMax = 256u << 20;

enum class LogFileKind : uint32_t { kLog = 1, kSnapshot = 2 };

std::string EncodeLogFileHeader(LogFileKind kind, uint64_t number);
// Reads and checks the header of a file of `kind` and `number`.
//   DataLoss            the header is damaged, or belongs to another file.
//   FailedPrecondition  a later version of ckv wrote it.
absl::Status ReadLogFileHeader(File& file, LogFileKind kind, uint64_t number);

// Returns `payload` as a frame. The payload must have 1 to kFramePayloadBytesMax bytes.
std::string EncodeFrame(uint64_t sequence, std::string_view payload);

// Reads the frames of one file in order, after its header. Used by one thread; `file` must outlive
// it.
class FrameReader {
 public:
  // `file_bytes` is the length of the file.
  FrameReader(File* file, uint64_t file_bytes) : file_(*file), file_bytes_(file_bytes) {}

  // Returns the next frame's payload, valid until the next call, or nothing after the last whole
  // frame.
  //   DataLoss            the bytes at offset() are damaged; the message describes how.
  //   Unavailable         the device failed.
  absl::StatusOr<std::optional<std::string_view>> Next();
  // The offset of the next frame: everything before it is whole.
  uint64_t offset() const { return offset_; }
  // The offset of the last whole frame, or of the first frame.
  uint64_t last_offset() const { return last_offset_; }
  // The sequence number of the next frame.
  uint64_t sequence() const { return sequence_; }
  // Returns true if Next has returned nothing and bytes are left: an unfinished frame.
  bool is_torn() const { return is_torn_; }

 private:
  // Classifies bad bytes at offset_. Returns nothing if the frame is unfinished. `frame_bytes` is 0
  // if its header cannot be trusted.
  absl::StatusOr<std::optional<std::string_view>> Judge(uint64_t frame_bytes,
                                                        std::string_view what);
  absl::StatusOr<bool> HasZeroSector(uint64_t begin, uint64_t end, uint64_t until);
  absl::StatusOr<bool> HasLaterFrame();

  File& file_;
  const uint64_t file_bytes_;
  uint64_t offset_ = kLogFileHeaderBytes;
  uint64_t last_offset_ = kLogFileHeaderBytes;
  uint64_t sequence_ = 0;
  bool is_torn_ = false;
  std::vector<char> payload_;
};

}  // namespace ckv
