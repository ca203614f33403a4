// Files of chunks in a folder. A put, in order: Begin creates a file under a temporary name and
// gives it its size; Write writes rows; Commit writes the header, syncs the file, makes its leaf
// folder, renames it there, and syncs that folder. So a name stands for a whole file only.
// ChunkFileReader reads rows and checks each stripe while it is in the core's cache. Facts are
// small files next to the chunk; Quarantine moves a damaged file away.

#include "store/disk/chunk_folder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/planted_bug.h"
#include "proto/base/status.h"
#include "proto/base/stripe.h"
#include "store/formats/json.h"
#include "store/formats/json_fields.h"

namespace ckv {
namespace {

constexpr FolderKind kKind = {.name = "chunk folder", .owners = "holders", .version = 1};
// 64 tenants' names of 128 bytes and the rest of the JSON.
constexpr size_t kFactsBytesMax = 16 << 10;
// Bytes written before writeback begins: large enough for a disk's best rate, small enough that
// little is left for Sync.
constexpr uint64_t kWritebackBytes = 8 << 20;
// Bytes read and checked at a time: eight stripes of 1152-byte rows, which stay in a core's own
// cache between the two.
constexpr uint64_t kReadBytes = 288 << 10;

std::string EncodeFacts(const ChunkFacts& facts) {
  nlohmann::json document = {{"readers", facts.readers}, {"kept", facts.kept}};
  if (facts.kept_until_ms != 0 || facts.ttl_ms != 0)
    document["times"] = {{"kept_until_ms", facts.kept_until_ms}, {"ttl_ms", facts.ttl_ms}};
  const std::string json = document.dump() + "\n";
  return absl::StrFormat("%016x %s", ChecksumOf(std::as_bytes(std::span(json))), json);
}

absl::StatusOr<ChunkFacts> DecodeFacts(std::string_view text) {
  constexpr size_t kChecksumBytes = 17;  // with the space
  std::string_view json = text.substr(std::min(text.size(), kChecksumBytes));
  // A flipped bit in a name would let another tenant read.
  if (text.substr(0, kChecksumBytes) !=
      absl::StrFormat("%016x ", ChecksumOf(std::as_bytes(std::span(json))))) {
    return absl::DataLossError("facts: the checksum is not theirs");
  }
  CKV_ASSIGN_OR_RETURN(const nlohmann::json document, ParseJson(json, /*depth_max=*/2));
  const JsonFields fields(document, "facts: ");
  CKV_RETURN_IF_ERROR(fields.CheckKeys({"readers", "kept"}, /*optional=*/{"times"}));
  ChunkFacts facts;
  if (fields.Has("times")) {
    const JsonFields times(fields.At("times"), "facts: times: ");
    CKV_RETURN_IF_ERROR(times.CheckKeys({"kept_until_ms", "ttl_ms"}));
    CKV_RETURN_IF_ERROR(times.Read("kept_until_ms", facts.kept_until_ms));
    CKV_RETURN_IF_ERROR(times.Read("ttl_ms", facts.ttl_ms));
  }
  if (!fields.At("kept").is_boolean()) return fields.Refuse("kept", "must be true or false");
  facts.kept = fields.At("kept").get<bool>();
  const nlohmann::json& readers = fields.At("readers");
  if (!readers.is_array() || readers.empty()) return fields.Refuse("readers", "must be names");
  for (const nlohmann::json& reader : readers) {
    if (!reader.is_string()) return fields.Refuse("readers", "must be names");
    CKV_RETURN_IF_ERROR(ValidateName("facts: reader", reader.get_ref<const std::string&>()));
    facts.readers.push_back(reader.get<std::string>());
  }
  return facts;
}

}  // namespace

ChunkFileWriter::ChunkFileWriter(ChunkFileWriter&& other) noexcept
    : folder_(other.folder_),
      file_(std::move(other.file_)),
      path_(std::exchange(other.path_, {})),
      layout_(other.layout_),
      header_bytes_(other.header_bytes_),
      since_writeback_(other.since_writeback_) {}

ChunkFileWriter::~ChunkFileWriter() {
  if (!path_.empty()) (void)folder_->files_->Remove(path_);
}

absl::Status ChunkFileWriter::Write(uint32_t tensor, uint64_t offset_bytes,
                                    std::span<const std::byte> bytes) {
  CKV_CHECK(offset_bytes + bytes.size() <= layout_.bytes(tensor));
  const uint64_t at = header_bytes_ + layout_.begin(tensor) + offset_bytes;
  CKV_RETURN_IF_ERROR(file_->WriteAt(at, bytes));
  since_writeback_ += bytes.size();
  if (since_writeback_ >= kWritebackBytes) {
    file_->StartWriteback(at + bytes.size() - since_writeback_, since_writeback_);
    since_writeback_ = 0;
  }
  return absl::OkStatus();
}

absl::Status ChunkFileWriter::Commit(const Chunk& chunk, std::string_view tenant) && {
  std::vector<uint64_t> stripes;
  for (uint32_t t = 0; t < chunk.layout().tensor_count(); ++t) {
    const std::span<const uint64_t> of_tensor = chunk.stripe_checksums(t);
    stripes.insert(stripes.end(), of_tensor.begin(), of_tensor.end());
  }
  const std::vector<std::byte> header =
      EncodeChunkFileHeader(chunk.info(), chunk.geometry(), tenant, stripes);
  CKV_CHECK(header.size() == header_bytes_);
  const ChunkId& id = chunk.info().id;
  FileSystem& files = *folder_->files_;
  CKV_RETURN_IF_ERROR(file_->WriteAt(0, header));
  std::unique_ptr<File> late_file;
  if (CKV_PLANTED_BUG("rename-before-sync")) {
    late_file = std::move(file_);
  } else if (!CKV_PLANTED_BUG("ack-before-sync")) {
    CKV_RETURN_IF_ERROR(file_->Sync());
  }
  file_.reset();
  CKV_RETURN_IF_ERROR(folder_->MakeLeaf(id));
  const std::string place = folder_->PathOf(id);
  CKV_RETURN_IF_ERROR(files.Rename(path_, place));
  path_.clear();
  absl::Status synced = files.SyncFolder(folder_->LeafOf(id));
  if (late_file != nullptr) synced.Update(late_file->Sync());
  // After a power loss its name may or may not be there, so the chunk is not reported as stored. A
  // chunk that was refused must not appear after a restart.
  if (!synced.ok()) (void)files.Remove(place);
  return synced;
}

uint64_t ChunkFileReader::StripeBytes(uint32_t tensor, uint32_t begin, uint32_t count) const {
  const uint64_t first = uint64_t{begin} * kStripeTokens;
  const uint64_t last =
      std::min<uint64_t>(first + uint64_t{count} * kStripeTokens, header_.info.token_count());
  return (last - first) * layout_.row_bytes(tensor);
}

absl::Status ChunkFileReader::ReadStripes(uint32_t tensor, uint32_t begin, uint32_t count,
                                          std::span<std::byte> rows) const {
  CKV_CHECK(tensor < layout_.tensor_count() && count > 0);
  CKV_CHECK(begin + count <= StripeCount(header_.info.token_count()));
  CKV_CHECK(rows.size() == StripeBytes(tensor, begin, count));
  const uint64_t stripe_bytes = uint64_t{kStripeTokens} * layout_.row_bytes(tensor);
  const uint64_t at = header_.prefix.header_bytes + layout_.begin(tensor) + begin * stripe_bytes;
  const auto at_once = static_cast<uint32_t>(std::max<uint64_t>(1, kReadBytes / stripe_bytes));
  for (uint32_t done = 0; done < count; done += at_once) {
    const uint32_t some = std::min(at_once, count - done);
    const std::span<std::byte> block =
        rows.subspan(done * stripe_bytes, StripeBytes(tensor, begin + done, some));
    CKV_RETURN_IF_ERROR(file_->ReadAt(at + done * stripe_bytes, block));
    for (uint32_t s = 0; s < some; ++s) {
      CKV_RETURN_IF_ERROR(
          CheckStripe(header_, tensor, begin + done + s,
                      block.subspan(s * stripe_bytes, StripeBytes(tensor, begin + done + s, 1))));
    }
  }
  return absl::OkStatus();
}

namespace {

// Takes rows in file order. Checks each stripe as soon as it is whole, while it is in the core's
// cache.
class RowsInOrder {
 public:
  RowsInOrder(const ChunkFileHeader& header, std::span<std::byte> rows)
      : header_(header),
        layout_(header.layout()),
        stripes_(StripeCount(header.info.token_count())),
        rows_(rows) {}

  absl::Status Add(std::span<const std::byte> block) {
    std::memcpy(rows_.data() + come_, block.data(), block.size());
    come_ += block.size();
    while (tensor_ < layout_.tensor_count()) {
      const uint64_t stripe_bytes = uint64_t{kStripeTokens} * layout_.row_bytes(tensor_);
      const uint64_t bytes = layout_.bytes(tensor_);
      const bool padding = stripe_ == stripes_;
      const uint64_t begin = padding ? bytes : stripe_ * stripe_bytes;
      const uint64_t end =
          padding ? layout_.padded_bytes(tensor_) : std::min(begin + stripe_bytes, bytes);
      const uint64_t tensor_begin = layout_.begin(tensor_);
      if (tensor_begin + end > come_) break;
      const std::span<const std::byte> part = rows_.subspan(tensor_begin + begin, end - begin);
      CKV_RETURN_IF_ERROR(padding ? CheckPadding(header_, tensor_, part)
                                  : CheckStripe(header_, tensor_, stripe_, part));
      tensor_ += padding ? 1 : 0;
      stripe_ = padding ? 0 : stripe_ + 1;
    }
    return absl::OkStatus();
  }

 private:
  const ChunkFileHeader& header_;
  const ChunkLayout layout_;
  const uint32_t stripes_;
  const std::span<std::byte> rows_;
  uint64_t come_ = 0;
  uint32_t tensor_ = 0, stripe_ = 0;  // the first that is not checked; after the last, the padding
};

}  // namespace

absl::Status ChunkFileReader::ReadAll(std::span<std::byte> rows) const {
  CKV_CHECK(rows.size() == layout_.total_bytes());
  const uint32_t stripes = StripeCount(header_.info.token_count());
  if (stripes == 0) return absl::OkStatus();
  RowsInOrder in_order(header_, rows);
  absl::Status streamed =
      file_->Stream(header_.prefix.header_bytes, layout_.total_bytes(),
                    [&](std::span<const std::byte> block) { return in_order.Add(block); });
  if (!absl::IsUnimplemented(streamed)) return streamed;
  for (uint32_t t = 0; t < layout_.tensor_count(); ++t) {
    const std::span<std::byte> padded = rows.subspan(layout_.begin(t), layout_.padded_bytes(t));
    const uint64_t bytes = layout_.bytes(t);
    CKV_RETURN_IF_ERROR(ReadStripes(t, 0, stripes, padded.first(bytes)));
    CKV_RETURN_IF_ERROR(CheckPaddingOf(t));
    std::memset(padded.data() + bytes, 0, padded.size() - bytes);
  }
  return absl::OkStatus();
}

absl::Status ChunkFileReader::CheckPaddingOf(uint32_t tensor) const {
  std::array<std::byte, ChunkLayout::kAlignment> bytes;
  const uint64_t row_bytes = layout_.bytes(tensor);
  const auto padding = std::span(bytes).first(layout_.padded_bytes(tensor) - row_bytes);
  if (padding.empty()) return absl::OkStatus();
  CKV_RETURN_IF_ERROR(
      file_->ReadAt(header_.prefix.header_bytes + layout_.begin(tensor) + row_bytes, padding));
  return CheckPadding(header_, tensor, padding);
}

absl::StatusOr<std::unique_ptr<ChunkFolder>> ChunkFolder::Open(const ChunkFolderOptions& options) {
  if (options.scan_threads == 0 || options.scan_threads > 256)
    return absl::InvalidArgumentError("chunk folder: scan_threads, 1 to 256");
  FileSystem& files = *options.files;
  const std::string& path = options.path;
  CKV_ASSIGN_OR_RETURN(OwnedFolder owned, OwnedFolder::Open(files, path, kKind));
  std::unique_ptr<ChunkFolder> folder(new ChunkFolder(options, std::move(owned)));
  for (const char* name : {"/chunks", "/new", "/quarantine"})
    CKV_RETURN_IF_ERROR(files.MakeFolder(absl::StrCat(path, name)));
  // A chunk is lost with the name of its folder, however well its own is synced.
  CKV_RETURN_IF_ERROR(files.SyncFolder(path));
  return folder;
}

ChunkFolder::ChunkFolder(const ChunkFolderOptions& options, OwnedFolder owned)
    : path_(options.path),
      files_(options.files),
      scan_threads_(options.scan_threads),
      owned_(std::move(owned)) {}

std::string ChunkFolder::LeafOf(const ChunkId& id) const {
  const std::string hex = id.ToHex();
  return absl::StrCat(path_, "/chunks/", hex.substr(0, 2), "/", hex.substr(2, 1));
}

std::string ChunkFolder::PathOf(const ChunkId& id) const {
  return absl::StrCat(LeafOf(id), "/", id.ToHex());
}

std::string ChunkFolder::NewPath() {
  return absl::StrCat(path_, "/new/", new_count_.fetch_add(1, std::memory_order_relaxed));
}

// Makes both levels and syncs their names: if a folder is lost, its chunks are lost with it.
absl::Status ChunkFolder::MakeLeaf(const ChunkId& id) {
  std::atomic<bool>& made = leaf_made_[size_t{id.bytes[0]} << 4 | id.bytes[1] >> 4];
  if (made.load(std::memory_order_relaxed)) return absl::OkStatus();
  const std::string leaf = LeafOf(id);
  const std::string middle = leaf.substr(0, leaf.rfind('/'));
  CKV_RETURN_IF_ERROR(files_->MakeFolder(middle));
  CKV_RETURN_IF_ERROR(files_->SyncFolder(absl::StrCat(path_, "/chunks")));
  CKV_RETURN_IF_ERROR(files_->MakeFolder(leaf));
  CKV_RETURN_IF_ERROR(files_->SyncFolder(middle));
  made.store(true, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::StatusOr<ChunkFileWriter> ChunkFolder::Begin(const ChunkInfo& info, const Geometry& geometry,
                                                   std::string_view tenant) {
  const std::string path = NewPath();
  CKV_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files_->Create(path));
  ChunkFileWriter writer(this, std::move(file), path, ChunkLayout(geometry, info.token_count()),
                         ChunkFileHeaderBytes(info, geometry, tenant));
  CKV_RETURN_IF_ERROR(writer.file_->Resize(writer.header_bytes_ + writer.layout_.total_bytes()));
  return writer;
}

absl::StatusOr<ChunkFileReader> ChunkFolder::Read(const ChunkId& id) {
  auto opened = files_->OpenForReading(PathOf(id));
  if (absl::IsNotFound(opened.status())) CKV_RETURN_IF_ERROR(CheckThere());
  CKV_ASSIGN_OR_RETURN(std::unique_ptr<File> file, std::move(opened));
  CKV_ASSIGN_OR_RETURN(ChunkFileHeader header, ReadChunkFileHeader(*file));
  if (header.info.id != id) {
    return absl::DataLossError(absl::StrFormat("chunk %s: its file is that of chunk %s",
                                               id.ShortHex(), header.info.id.ShortHex()));
  }
  return ChunkFileReader(std::move(file), std::move(header));
}

absl::Status ChunkFolder::WriteFacts(const ChunkId& id, const ChunkFacts& facts) {
  return WriteSmallFile(*files_, NewPath(), LeafOf(id), absl::StrCat(id.ToHex(), ".facts"),
                        EncodeFacts(facts));
}

absl::StatusOr<ChunkFacts> ChunkFolder::ReadFacts(const std::string& path,
                                                  const std::string& tenant) {
  const auto text = ReadSmallFile(*files_, path, kFactsBytesMax);
  if (absl::IsNotFound(text.status())) return ChunkFacts{.readers = {tenant}};
  if (!text.ok()) return text.status();
  return DecodeFacts(*text);
}

absl::Status ChunkFolder::Remove(const ChunkId& id) {
  const std::string path = PathOf(id);
  // Removes the chunk first: a scan removes facts without a chunk, and a chunk without its facts
  // has only its first reader.
  absl::Status removed = files_->Remove(path);
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  removed = files_->Remove(absl::StrCat(path, ".facts"));
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

absl::Status ChunkFolder::ForgetFacts(const ChunkId& id) {
  const absl::Status removed = files_->Remove(absl::StrCat(PathOf(id), ".facts"));
  if (absl::IsNotFound(removed)) return absl::OkStatus();
  CKV_RETURN_IF_ERROR(removed);
  return files_->SyncFolder(LeafOf(id));
}

absl::Status ChunkFolder::Quarantine(const ChunkId& id, std::string_view why) {
  CKV_RETURN_IF_ERROR(QuarantineFile(PathOf(id), id.ToHex(), why));
  // The readers and expiry times were those of the damaged rows.
  return ForgetFacts(id);
}

absl::Status ChunkFolder::QuarantineFile(const std::string& path, const std::string& name,
                                         std::string_view why) {
  const std::string folder = absl::StrCat(path_, "/quarantine");
  std::string to;
  // A taken name is that of the same chunk, which was damaged before.
  for (int i = 0;; ++i) {
    to = i == 0 ? name : absl::StrCat(name, ".", i);
    if (absl::IsNotFound(files_->OpenForReading(absl::StrCat(folder, "/", to)).status())) break;
    if (i == 1000) return absl::ResourceExhaustedError(absl::StrFormat("%s: empty it", folder));
  }
  CKV_RETURN_IF_ERROR(files_->Rename(path, absl::StrCat(folder, "/", to)));
  return WriteSmallFile(*files_, NewPath(), folder, absl::StrCat(to, ".why"),
                        absl::StrCat(std::string(why), "\n"));
}

}  // namespace ckv
