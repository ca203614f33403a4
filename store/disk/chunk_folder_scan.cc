// Finds the contents of a chunk folder when it is opened. Scanner::Run, in order: removes
// unfinished files; lists the leaf folders; scan threads take one leaf after another, sync its
// names, read each file's header and facts, and report the chunk. Damaged files are quarantined,
// those of a later version are counted and left, and facts without a chunk are removed.

#include <utility>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/planted_bug.h"
#include "proto/base/status.h"
#include "proto/host/thread.h"
#include "store/disk/chunk_folder.h"

namespace ckv {
namespace {

constexpr std::string_view kFactsSuffix = ".facts";

bool IsHex(std::string_view name, size_t digits) {
  return name.size() == digits &&
         name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

// Threads take leaf folders in turn.
class ChunkFolder::Scanner {
 public:
  Scanner(ChunkFolder* folder, absl::FunctionRef<void(StoredChunk)> found)
      : folder_(*folder), files_(*folder->files_), found_(found) {}

  absl::StatusOr<ScanReport> Run() {
    CKV_RETURN_IF_ERROR(RemoveUnfinished());
    CKV_RETURN_IF_ERROR(FindLeaves());
    std::vector<Thread> threads;
    for (uint32_t i = 0; i < folder_.scan_threads_; ++i) threads.emplace_back([this] { Work(); });
    for (Thread& thread : threads) thread.join();
    absl::MutexLock lock(&mu_);
    if (!status_.ok()) return status_;
    return report_;
  }

 private:
  absl::Status RemoveUnfinished() {
    const std::string path = absl::StrCat(folder_.path_, "/new");
    CKV_ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries, files_.List(path));
    for (const FolderEntry& entry : entries) {
      CKV_RETURN_IF_ERROR(files_.Remove(absl::StrCat(path, "/", entry.name)));
      absl::MutexLock lock(&mu_);
      ++report_.unfinished_count;
    }
    return absl::OkStatus();
  }

  absl::Status FindLeaves() {
    const std::string chunks = absl::StrCat(folder_.path_, "/chunks");
    CKV_ASSIGN_OR_RETURN(const std::vector<FolderEntry> first, files_.List(chunks));
    for (const FolderEntry& high : first) {
      const std::string middle = absl::StrCat(chunks, "/", high.name);
      if (!high.is_folder || !IsHex(high.name, 2)) {
        CKV_RETURN_IF_ERROR(Foreign(middle, high.name, high.is_folder));
        continue;
      }
      CKV_ASSIGN_OR_RETURN(const std::vector<FolderEntry> second, files_.List(middle));
      for (const FolderEntry& low : second) {
        const std::string leaf = absl::StrCat(middle, "/", low.name);
        if (!low.is_folder || !IsHex(low.name, 1)) {
          CKV_RETURN_IF_ERROR(Foreign(leaf, low.name, low.is_folder));
          continue;
        }
        leaves_.push_back({leaf, high.name + low.name});
      }
    }
    return absl::OkStatus();
  }

  // A foreign folder contains nothing that could be served: it stays where it is.
  absl::Status Foreign(const std::string& path, const std::string& name, bool is_folder) {
    if (is_folder) return absl::OkStatus();
    return Reject(path, name, "no chunk has this name");
  }

  absl::Status Reject(const std::string& path, const std::string& name, std::string_view why) {
    CKV_RETURN_IF_ERROR(folder_.QuarantineFile(path, name, why));
    absl::MutexLock lock(&mu_);
    if (report_.quarantined_count++ == 0)
      report_.first_quarantined = absl::StrFormat("%s: %s", path, why);
    return absl::OkStatus();
  }

  void Work() {
    while (true) {
      const size_t next = next_leaf_.fetch_add(1, std::memory_order_relaxed);
      if (next >= leaves_.size()) return;
      absl::Status status = ScanLeaf(leaves_[next]);
      if (status.ok()) continue;
      absl::MutexLock lock(&mu_);
      status_.Update(status);
      next_leaf_ = leaves_.size();
    }
  }

  struct Leaf {
    std::string path;
    std::string digits;  // that its ids begin with
  };

  absl::Status ScanLeaf(const Leaf& leaf) {
    // A put that ended between its rename and its sync left a name that a power loss would take.
    // From here on the chunk counts as stored: a put of it is answered with no write.
    CKV_RETURN_IF_ERROR(files_.SyncFolder(leaf.path));
    CKV_ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries, files_.List(leaf.path));
    for (const FolderEntry& entry : entries) {
      const std::string path = absl::StrCat(leaf.path, "/", entry.name);
      std::string_view id = entry.name;
      const bool facts = id.ends_with(kFactsSuffix);
      if (facts) id.remove_suffix(kFactsSuffix.size());
      if (entry.is_folder || !IsHex(id, 64) || !id.starts_with(leaf.digits)) {
        CKV_RETURN_IF_ERROR(Foreign(path, entry.name, entry.is_folder));
      } else if (!facts) {
        CKV_RETURN_IF_ERROR(ScanChunk(path, entry.name));
      } else if (absl::IsNotFound(
                     files_.OpenForReading(absl::StrCat(leaf.path, "/", std::string(id)))
                         .status())) {
        CKV_RETURN_IF_ERROR(files_.Remove(path));  // left by a chunk that was dropped
      }
    }
    return absl::OkStatus();
  }

  absl::Status ScanChunk(const std::string& path, const std::string& name) {
    auto chunk = ReadChunk(path, name);
    if (chunk.ok() && CKV_PLANTED_BUG("forgets-chunk") && name[0] < '4') return absl::OkStatus();
    if (chunk.ok()) {
      absl::MutexLock lock(&mu_);
      ++report_.chunk_count;
      found_(*std::move(chunk));
      return absl::OkStatus();
    }
    switch (chunk.status().code()) {
      case absl::StatusCode::kDataLoss:
      case absl::StatusCode::kInvalidArgument:
        return Reject(path, name, std::string(chunk.status().message()));
      case absl::StatusCode::kFailedPrecondition: {
        absl::MutexLock lock(&mu_);
        ++report_.refused_count;
        return absl::OkStatus();
      }
      default:
        // The device failed, which is no evidence against the chunk. Nothing unread is served.
        return Annotate(chunk.status(), "scanning chunks");
    }
  }

  absl::StatusOr<StoredChunk> ReadChunk(const std::string& path, const std::string& name) {
    CKV_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_.OpenForReading(path));
    StoredChunk chunk;
    CKV_ASSIGN_OR_RETURN(chunk.header, ReadChunkFileHeader(*file));
    if (chunk.header.info.id.ToHex() != name)
      return absl::DataLossError(
          absl::StrFormat("it is the file of chunk %s", chunk.header.info.id.ToHex()));
    const std::string facts_path = absl::StrCat(path, std::string(kFactsSuffix));
    auto facts = folder_.ReadFacts(facts_path, chunk.header.tenant);
    if (absl::IsInvalidArgument(facts.status()) || absl::IsDataLoss(facts.status())) {
      // The chunk is whole, but its other tenants must put it again.
      CKV_RETURN_IF_ERROR(Reject(facts_path, name + std::string(kFactsSuffix),
                                 std::string(facts.status().message())));
      facts = ChunkFacts{.readers = {chunk.header.tenant}};
    }
    CKV_ASSIGN_OR_RETURN(chunk.facts, std::move(facts));
    return chunk;
  }

  ChunkFolder& folder_;
  FileSystem& files_;
  std::vector<Leaf> leaves_;
  std::atomic<size_t> next_leaf_{0};
  absl::Mutex mu_;
  const absl::FunctionRef<void(StoredChunk)> found_ ABSL_GUARDED_BY(mu_);
  ScanReport report_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<std::vector<ChunkId>> ChunkFolder::Quarantined() {
  CKV_ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries,
                       files_->List(absl::StrCat(path_, "/quarantine")));
  absl::btree_set<ChunkId> ids;
  for (const FolderEntry& entry : entries) {
    // "ID", or "ID.3" if one was damaged before; not "ID.why" or "ID.facts".
    const std::string_view name = entry.name;
    const std::string_view id = name.substr(0, name.find('.'));
    if (entry.is_folder || !IsHex(id, 64)) continue;
    if (id != name && name.find_first_not_of("0123456789", id.size() + 1) != name.npos) continue;
    CKV_ASSIGN_OR_RETURN(const ChunkId parsed, ChunkId::FromHex(id));
    ids.insert(parsed);
  }
  return std::vector<ChunkId>(ids.begin(), ids.end());
}

absl::StatusOr<ScanReport> ChunkFolder::Scan(absl::FunctionRef<void(StoredChunk)> found) {
  return Scanner(this, found).Run();
}

}  // namespace ckv
