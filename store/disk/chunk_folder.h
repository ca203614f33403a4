// The chunks of one holder on disk: a folder of chunk files (store/disk/chunk_file.h).
//
//   FORMAT, LOCK       of store/disk/owned_folder.h
//   chunks/ab/c/ID     chunk files, under the first two and the third hex digit of their id
//   chunks/ab/c/ID.facts   the chunk's ChunkFacts. Missing if only the tenant in the chunk's file
//                          may read the chunk, and it is neither kept nor expires.
//   new/               files that are being written; emptied at start
//   quarantine/        damaged or foreign files, each with its reason in NAME.why
//
// A chunk is visible once its file is complete. The file is written under new/, synced and renamed
// to its place, and then its folder is synced (I3). So a process that dies leaves only complete
// chunks and files under new/. Any other file was damaged later: it is quarantined with its reason
// and never served.
//
// There are 4096 leaf folders: 24 files in each for 100,000 chunks, 2,400 for 10 million.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/disk/chunk_file.h"
#include "store/disk/file_system.h"
#include "store/disk/owned_folder.h"
#include "store/memory/chunk_facts.h"

namespace ckv {

struct ChunkFolderOptions {
  // The folder's path. Open creates the folder if it is missing; its parent must exist.
  std::string path;
  // The file system the folder is on. It must outlive the ChunkFolder.
  FileSystem* files = FileSystem::Real();
  // Threads of a scan, 1 to 256. Each opens one file after another, and on a cold disk waits for
  // each.
  uint32_t scan_threads = 8;
};

// A chunk as a scan found it. Its rows are not checked yet.
struct StoredChunk {
  ChunkFileHeader header;
  ChunkFacts facts;
};

// The result of a scan.
struct ScanReport {
  uint64_t chunk_count = 0;        // whole chunks
  uint64_t unfinished_count = 0;   // files removed from new/
  uint64_t quarantined_count = 0;  // files quarantined by this scan
  uint64_t refused_count = 0;      // files of a later version: left in place, not served
  std::string first_quarantined;   // path and reason of the first, for a log line
};

class ChunkFolder;

// Writes one chunk's file. The destructor removes the file unless it was committed. Movable; used
// by one thread at a time. The ChunkFolder must outlive the writer.
class ChunkFileWriter {
 public:
  ChunkFileWriter(ChunkFileWriter&&) noexcept;
  ChunkFileWriter& operator=(ChunkFileWriter&&) = delete;
  ~ChunkFileWriter();

  // Writes rows of a tensor, `offset_bytes` after its first byte.
  //   ResourceExhausted   the disk is full.
  //   Unavailable         the device fails.
  absl::Status Write(uint32_t tensor, uint64_t offset_bytes, std::span<const std::byte> bytes);
  // Syncs the file to the device and renames it to its place; after OK it survives a power loss.
  // `chunk` is complete: it has the geometry and token count passed to Begin, and the rows that
  // were written. After an error the file is removed, at the latest by the destructor. A failed
  // sync is never retried, because the kernel has already dropped the data that it could not write.
  //   ResourceExhausted   the disk is full.
  //   Unavailable         the device fails.
  absl::Status Commit(const Chunk& chunk, std::string_view tenant) &&;

 private:
  friend class ChunkFolder;
  ChunkFileWriter(ChunkFolder* folder, std::unique_ptr<File> file, std::string path,
                  const ChunkLayout& layout, uint32_t header_bytes)
      : folder_(folder),
        file_(std::move(file)),
        path_(std::move(path)),
        layout_(layout),
        header_bytes_(header_bytes) {}

  ChunkFolder* folder_;
  std::unique_ptr<File> file_;
  std::string path_;  // empty once it was committed or moved from
  ChunkLayout layout_;
  uint32_t header_bytes_;
  uint64_t since_writeback_ = 0;
};

// A chunk's file, open for reading, with a checked header. Movable, thread-safe. A reader may
// outlive the ChunkFolder, and can still read after the file is removed.
class ChunkFileReader {
 public:
  const ChunkFileHeader& header() const { return header_; }
  // Reads and checks all rows, in their layout in memory; `rows` has
  // header().layout().total_bytes().
  //   DataLoss            a checksum does not match, or the file is too short. Nothing in `rows`
  //                       is valid.
  //   Unavailable         the device fails.
  absl::Status ReadAll(std::span<std::byte> rows) const;
  // Reads and checks stripes [begin, begin + count) of one tensor; `rows` has StripeBytes(tensor,
  // begin, count). Errors are those of ReadAll.
  absl::Status ReadStripes(uint32_t tensor, uint32_t begin, uint32_t count,
                           std::span<std::byte> rows) const;
  // Checks that the padding after a tensor's rows is zero. Errors are those of ReadAll.
  absl::Status CheckPaddingOf(uint32_t tensor) const;
  // Requests that the system drop the file from its page cache, so that later reads use the device.
  void DropCached() const { file_->DropCached(); }
  // Returns the size in bytes of stripes [begin, begin + count) of a tensor.
  uint64_t StripeBytes(uint32_t tensor, uint32_t begin, uint32_t count) const;

 private:
  friend class ChunkFolder;
  ChunkFileReader(std::unique_ptr<File> file, ChunkFileHeader header)
      : file_(std::move(file)), header_(std::move(header)), layout_(header_.layout()) {}

  std::unique_ptr<File> file_;
  ChunkFileHeader header_;
  ChunkLayout layout_;
};

// The files of one holder's chunks. Thread-safe, with two exceptions: Scan is called first, and
// only one thread at a time may write, remove or quarantine files of the same chunk. Every call
// blocks on the device. In addition to the errors below, a call may return those of FileSystem.
class ChunkFolder {
 public:
  // Opens the folder, creating it if it is missing, and locks it until the object is destroyed.
  //   InvalidArgument     scan_threads is out of range.
  //   FailedPrecondition  another process uses the folder, a later version of ckv made it, or it is
  //                       neither empty nor a chunk folder.
  static absl::StatusOr<std::unique_ptr<ChunkFolder>> Open(const ChunkFolderOptions& options);
  ChunkFolder(const ChunkFolder&) = delete;
  ChunkFolder& operator=(const ChunkFolder&) = delete;

  // Removes unfinished files, quarantines damaged and foreign ones, and calls `found` for each
  // whole chunk, one at a time, in no particular order. A chunk's name is durable before `found` is
  // called, however its writer ended. Checks headers and lengths only; rows are checked when they
  // are read or scrubbed.
  absl::StatusOr<ScanReport> Scan(absl::FunctionRef<void(StoredChunk)> found);

  // Creates a file for a chunk, and reserves its length.
  //   ResourceExhausted   the disk is full.
  absl::StatusOr<ChunkFileWriter> Begin(const ChunkInfo& info, const Geometry& geometry,
                                        std::string_view tenant);
  // Opens a chunk's file and checks its header.
  //   NotFound            there is no file.
  //   Unavailable         the folder is not at its path; see CheckThere.
  //   DataLoss            the file is damaged; the caller should quarantine it.
  absl::StatusOr<ChunkFileReader> Read(const ChunkId& id);
  // Saves a chunk's facts; durable once it returns OK. The chunk must have a file.
  absl::Status WriteFacts(const ChunkId& id, const ChunkFacts& facts);
  // Removes a chunk's facts, durably, so that the next put of this id starts with only its own
  // tenant as reader and no marks. Returns OK if there are none.
  absl::Status ForgetFacts(const ChunkId& id);
  // Removes the chunk's file and facts. Returns OK if there are none. Does not sync: after a power
  // loss, the complete chunk may exist again.
  absl::Status Remove(const ChunkId& id);
  // Moves the chunk's file to quarantine/, writes the reason next to it, and removes its facts.
  //   NotFound            there is no file.
  //   ResourceExhausted   the quarantine already has 1001 files of this chunk.
  absl::Status Quarantine(const ChunkId& id, std::string_view why);
  // Returns the ids of all quarantined chunks, each once.
  absl::StatusOr<std::vector<ChunkId>> Quarantined();
  // Checks that the folder is still at the path with which it was opened.
  //   Unavailable         the folder was removed, moved or replaced.
  absl::Status CheckThere() const { return owned_.CheckThere(); }

 private:
  friend class ChunkFileWriter;
  class Scanner;
  ChunkFolder(const ChunkFolderOptions& options, OwnedFolder owned);

  std::string LeafOf(const ChunkId& id) const;
  std::string PathOf(const ChunkId& id) const;
  absl::Status MakeLeaf(const ChunkId& id);
  absl::StatusOr<ChunkFacts> ReadFacts(const std::string& path, const std::string& tenant);
  absl::Status QuarantineFile(const std::string& path, const std::string& name,
                              std::string_view why);
  std::string NewPath();

  const std::string path_;
  FileSystem* const files_;
  const uint32_t scan_threads_;
  const OwnedFolder owned_;
  std::array<std::atomic<bool>, 4096> leaf_made_{};
  std::atomic<uint64_t> new_count_{0};
};

}  // namespace ckv
