// The chunks of one holder on disk: a folder of chunk files (store/chunk_file.h).
//
//   FORMAT             "ckv chunk folder 1"
//   LOCK               held by the process that uses the folder
//   chunks/ab/c/ID     chunk files, under the first two and the third hex digit of their id
//   chunks/ab/c/ID.facts   who else may read it, whether it is kept, when either ends; absent: as
//                          its file says
//   new/               what is being written; emptied at start
//   quarantine/        what was damaged or foreign, each beside NAME.why
//
// A chunk is visible once its file is whole: written under new/, synced, renamed to its place, the
// folder synced, in this order (I3). What a process left behind when it died is therefore either a
// whole chunk or a file under new/, and what is neither was damaged later and is quarantined with
// its reason; nothing of it is ever served.
//
// 4096 folders: 24 files in each of 100,000 chunks, 2,400 of 10 M.

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
#include "store/chunk_facts.h"
#include "store/chunk_file.h"
#include "store/file_system.h"

namespace ckv {

struct ChunkFolderOptions {
  std::string path;  // made if it is not there; its parent must be
  FileSystem* files = FileSystem::Real();
  // Files are opened one after another a thread, which on a cold disk waits for it each time.
  uint32_t scan_threads = 8;
};

// A chunk as a scan or a read found it. Its rows are not checked yet.
struct StoredChunk {
  ChunkFileHeader header;
  ChunkFacts facts;
};

struct ScanReport {
  uint64_t chunk_count = 0;
  uint64_t unfinished_count = 0;   // removed from new/
  uint64_t quarantined_count = 0;  // by this scan
  uint64_t refused_count = 0;      // of a later version: left where they are, not served
  std::string first_quarantined;   // its path and the reason, for a log line
};

class ChunkFolder;

// A chunk's file being written. Removed again unless it is committed. One thread at a time.
class ChunkFileWriter {
 public:
  ChunkFileWriter(ChunkFileWriter&&) noexcept;
  ChunkFileWriter& operator=(ChunkFileWriter&&) = delete;
  ~ChunkFileWriter();

  // Rows of a layer, at any offset.
  absl::Status Write(uint32_t layer, uint64_t offset_bytes, std::span<const std::byte> bytes);
  // Makes it durable and puts it in its place; after OK it survives a power loss. `chunk` is whole
  // and has the info, geometry and rows that this was begun for. After an error the file is gone:
  // one whose sync failed is never tried again, because what the kernel dropped stays dropped.
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
  std::string path_;  // empty: committed, or moved from
  ChunkLayout layout_;
  uint32_t header_bytes_;
  uint64_t since_writeback_ = 0;
};

// A chunk's file, open for reading; its header is right. Thread-safe.
class ChunkFileReader {
 public:
  const ChunkFileHeader& header() const { return header_; }
  // All rows as they lie in memory, layout().total_bytes of them, each checked.
  //   DataLoss            a checksum does not match, or the file ends: nothing of `rows` is valid.
  absl::Status ReadAll(std::span<std::byte> rows) const;
  // Stripes [begin, begin + count) of one layer, one behind the other without padding.
  absl::Status ReadStripes(uint32_t layer, uint32_t begin, uint32_t count,
                           std::span<std::byte> rows) const;
  // That what lies behind a layer's rows is zero.
  absl::Status CheckPaddingOf(uint32_t layer) const;
  // Later reads are of the device, as far as the system lets go of what it remembers.
  void DropCached() const { file_->DropCached(); }
  // Bytes of stripes [begin, begin + count).
  uint64_t StripeBytes(uint32_t begin, uint32_t count) const;

 private:
  friend class ChunkFolder;
  ChunkFileReader(std::unique_ptr<File> file, ChunkFileHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}

  std::unique_ptr<File> file_;
  ChunkFileHeader header_;
};

// Thread-safe but for Scan, which comes first.
class ChunkFolder {
 public:
  // Makes the folder or takes it over. Errors as FileSystem's, and:
  //   FailedPrecondition  another process uses it, it was made by a later ckv, or it is not empty
  //                       and not a chunk folder.
  static absl::StatusOr<std::unique_ptr<ChunkFolder>> Open(const ChunkFolderOptions& options);
  ~ChunkFolder();
  ChunkFolder(const ChunkFolder&) = delete;
  ChunkFolder& operator=(const ChunkFolder&) = delete;

  // Removes what was not finished, quarantines what is damaged or foreign, and shows each whole
  // chunk, one at a time, in no order. Checks headers and lengths; rows are checked when they are
  // read, or by a scrub.
  absl::StatusOr<ScanReport> Scan(absl::FunctionRef<void(StoredChunk)> found);

  // Starts a file for a chunk of this many tokens.
  absl::StatusOr<ChunkFileWriter> Begin(const Geometry& geometry, std::string_view tenant,
                                        uint32_t token_count);
  // The header is read and checked again.
  //   NotFound            no file.
  //   DataLoss            damaged; the caller quarantines it.
  absl::StatusOr<ChunkFileReader> Read(const ChunkId& id);
  // Durable when it returns OK.
  absl::Status WriteFacts(const ChunkId& id, const ChunkFacts& facts);
  // Durable: what is put next under this id begins with its own tenant and no marks. OK where there
  // are none.
  absl::Status ForgetFacts(const ChunkId& id);
  // The chunk's file and facts; OK where there are none. Not synced: after a power loss the chunk
  // may be there again, whole.
  absl::Status Remove(const ChunkId& id);
  // Moves the chunk's file out of the way, with the reason beside it.
  absl::Status Quarantine(const ChunkId& id, std::string_view why);
  // Ids of the chunks that lie there, of all times, each once.
  absl::StatusOr<std::vector<ChunkId>> Quarantined();

 private:
  friend class ChunkFileWriter;
  class Scanner;
  ChunkFolder(const ChunkFolderOptions& options, int lock_fd);

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
  const int lock_fd_;
  std::array<std::atomic<bool>, 4096> leaf_made_{};
  std::atomic<uint64_t> new_count_{0};
};

}  // namespace ckv
