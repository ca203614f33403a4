// Parts of corpora as small files, one for each corpus, each with a checksum. Open reads all of
// them, removes damaged ones, and keeps a summary in memory. Write and Remove change a file durably
// before the summary. SEEN has the last state of the directory that this holder has seen, and what
// was dropped. Without a folder the parts are in memory.

#include "store/disk/corpus_parts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/base/xxh3.h"
#include "store/corpus/corpus_bytes.h"

namespace ckv {
namespace {

constexpr std::string_view kPartMagic = "ckvpart1";
// Ordinals and chunks of kCorpusChunkCountMax with 8 holders each.
constexpr size_t kPartBytesMax = size_t{256} << 20;
constexpr char kNewName[] = "new";
constexpr std::string_view kSeenMagic = "ckvseen2", kSeenMagicNameless = "ckvseen1";
constexpr char kSeenName[] = "SEEN";
// kDroppedCountMax drops with the longest names.
constexpr size_t kSeenBytesMax = size_t{1} << 20;

uint64_t ChecksumOfText(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

std::string EncodePart(const CorpusPart& part) {
  std::string body;
  PutBytes(part.folder_id, body);
  PutBytes(part.chunk_count, body);
  PutBytes(static_cast<uint32_t>(part.ordinals.size()), body);
  for (const uint32_t ordinal : part.ordinals) PutBytes(ordinal, body);
  PutCorpus(part.corpus, body);
  std::string bytes(kPartMagic);
  PutBytes(ChecksumOfText(body), bytes);
  return bytes + body;
}

absl::StatusOr<CorpusPart> DecodePart(std::string_view bytes) {
  ByteReader from(bytes);
  if (from.TakeBytes(kPartMagic.size()) != kPartMagic)
    return absl::DataLossError("corpus part: it begins with something else");
  const auto checksum = from.Take<uint64_t>();
  constexpr size_t kBodyAt = kPartMagic.size() + sizeof(checksum);
  if (from.IsShort() || checksum != ChecksumOfText(bytes.substr(kBodyAt)))
    return absl::DataLossError("corpus part: the checksum is not its bytes'");
  CorpusPart part;
  part.folder_id = from.Take<uint64_t>();
  part.chunk_count = from.Take<uint32_t>();
  const auto ordinal_count = from.Take<uint32_t>();
  if (ordinal_count > from.left() / sizeof(uint32_t))
    return absl::DataLossError("corpus part: more ordinals than bytes");
  part.ordinals.resize(ordinal_count);
  for (uint32_t& ordinal : part.ordinals) ordinal = from.Take<uint32_t>();
  CKV_ASSIGN_OR_RETURN(part.corpus, TakeCorpus(from));
  if (!from.IsDone()) return absl::DataLossError("corpus part: more bytes than chunks");
  const absl::Status valid = ValidateCorpusPart(part);
  if (!valid.ok()) return absl::DataLossError(std::string(valid.message()));
  return part;
}

std::string EncodeSeen(const SeenDirectory& seen, const std::string& by,
                       const std::vector<DroppedCorpus>& dropped) {
  std::string body;
  PutBytes(seen.folder_id, body);
  PutBytes(seen.number, body);
  PutText<uint8_t>(by, body);
  PutBytes(static_cast<uint32_t>(dropped.size()), body);
  for (const DroppedCorpus& one : dropped) {
    PutBytes(one.folder_id, body);
    PutBytes(one.version, body);
    PutBytes(one.number, body);
    PutText<uint8_t>(one.tenant, body);
    PutText<uint8_t>(one.name, body);
  }
  std::string bytes(kSeenMagic);
  PutBytes(ChecksumOfText(body), bytes);
  return bytes + body;
}

absl::Status DecodeSeen(std::string_view bytes, SeenDirectory& seen, std::string& by,
                        std::vector<DroppedCorpus>& dropped) {
  ByteReader from(bytes);
  const std::string_view magic = from.TakeBytes(kSeenMagic.size());
  const bool begins = magic == kSeenMagic || magic == kSeenMagicNameless;
  const auto checksum = from.Take<uint64_t>();
  constexpr size_t kBodyAt = kSeenMagic.size() + sizeof(checksum);
  if (!begins || from.IsShort() || checksum != ChecksumOfText(bytes.substr(kBodyAt)))
    return absl::DataLossError("what was seen: the checksum is not its bytes'");
  seen.folder_id = from.Take<uint64_t>();
  seen.number = from.Take<uint64_t>();
  if (magic == kSeenMagic) by = std::string(from.TakeText<uint8_t>());
  const auto count = from.Take<uint32_t>();
  if (count > kDroppedCountMax) return absl::DataLossError("what was seen: too many drops");
  for (uint32_t i = 0; i < count; ++i) {
    DroppedCorpus one;
    one.folder_id = from.Take<uint64_t>();
    one.version = from.Take<uint64_t>();
    one.number = from.Take<uint64_t>();
    one.tenant = std::string(from.TakeText<uint8_t>());
    one.name = std::string(from.TakeText<uint8_t>());
    if (from.IsShort() || !ValidateDropped(one).ok())
      return absl::DataLossError("what was seen: a drop is malformed");
    dropped.push_back(std::move(one));
  }
  return from.IsDone() ? absl::OkStatus()
                       : absl::DataLossError("what was seen: more bytes than drops");
}

std::string NameOf(const CorpusParts::Key& key) {
  // No name has a slash.
  const std::string text = absl::StrCat(key.first, "/", key.second);
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

CorpusParts::Key KeyOf(const CorpusPart& part) { return {part.corpus.tenant, part.corpus.name}; }

}  // namespace

absl::StatusOr<std::unique_ptr<CorpusParts>> CorpusParts::Open(FileSystem* files,
                                                               const std::string& path,
                                                               std::string* damaged) {
  const std::string folder = path.empty() ? "" : absl::StrCat(path, "/corpora");
  std::unique_ptr<CorpusParts> parts(new CorpusParts(files, folder));
  if (!folder.empty()) CKV_RETURN_IF_ERROR(parts->ReadAll(damaged));
  return parts;
}

absl::Status CorpusParts::ReadAll(std::string* damaged) {
  CKV_RETURN_IF_ERROR(files_.MakeFolder(folder_));
  CKV_ASSIGN_OR_RETURN(const std::vector<FolderEntry> there, files_.List(folder_));
  CKV_RETURN_IF_ERROR(ReadSeen(damaged));
  for (const FolderEntry& entry : there) {
    if (entry.is_folder || entry.name == kSeenName) continue;
    const std::string path = absl::StrCat(folder_, "/", entry.name);
    absl::StatusOr<CorpusPart> part = absl::DataLossError("");
    if (entry.name != kNewName) {
      CKV_ASSIGN_OR_RETURN(const std::string bytes, ReadSmallFile(files_, path, kPartBytesMax));
      part = DecodePart(bytes);
      if (part.ok() && NameOf(KeyOf(*part)) != entry.name)
        part = absl::DataLossError("corpus part: it is that of another corpus");
    }
    if (part.ok()) {
      entries_[KeyOf(*part)].summary = {part->corpus.version, part->folder_id};
      continue;
    }
    if (damaged->empty() && entry.name != kNewName)
      *damaged = absl::StrFormat("%s: %s", path, std::string(part.status().message()));
    if (entry.name != kNewName) CKV_RETURN_IF_ERROR(ForgetSeen());
    CKV_RETURN_IF_ERROR(files_.Remove(path));
  }
  return absl::OkStatus();
}

absl::Status CorpusParts::ReadSeen(std::string* damaged) {
  const std::string path = absl::StrCat(folder_, "/", kSeenName);
  const absl::StatusOr<std::string> bytes = ReadSmallFile(files_, path, kSeenBytesMax);
  if (absl::IsNotFound(bytes.status())) return absl::OkStatus();
  absl::Status read = bytes.status();
  if (read.ok()) read = DecodeSeen(*bytes, seen_, seen_by_, dropped_);
  if (!absl::IsDataLoss(read) && !absl::IsFailedPrecondition(read)) return read;
  *damaged = absl::StrFormat("%s: %s", path, std::string(read.message()));
  seen_ = {};
  seen_by_.clear();
  dropped_.clear();
  return files_.Remove(path);
}

absl::Status CorpusParts::ForgetSeen() {
  return seen_ == SeenDirectory() ? absl::OkStatus() : WriteSeen({}, seen_by_, dropped_);
}

absl::Status CorpusParts::WriteSeen(const SeenDirectory& seen, const std::string& by,
                                    std::vector<DroppedCorpus> dropped) {
  if (!folder_.empty()) {
    CKV_RETURN_IF_ERROR(WriteSmallFile(files_, absl::StrCat(folder_, "/", kNewName), folder_,
                                       kSeenName, EncodeSeen(seen, by, dropped)));
  }
  seen_ = seen;
  seen_by_ = by;
  dropped_ = std::move(dropped);
  return absl::OkStatus();
}

absl::Status CorpusParts::GiveUp(const Key& key) {
  CKV_RETURN_IF_ERROR(ForgetSeen());
  return Remove(key);
}

std::map<CorpusParts::Key, CorpusParts::Summary> CorpusParts::List() const {
  std::map<Key, Summary> summaries;
  for (const auto& [key, entry] : entries_) summaries.emplace(key, entry.summary);
  return summaries;
}

absl::StatusOr<CorpusPart> CorpusParts::Read(const Key& key) const {
  const auto found = entries_.find(key);
  if (found == entries_.end())
    return absl::NotFoundError(absl::StrFormat("no part of corpus \"%s\"", key.second));
  if (folder_.empty()) return DecodePart(found->second.bytes);
  CKV_ASSIGN_OR_RETURN(
      const std::string bytes,
      ReadSmallFile(files_, absl::StrCat(folder_, "/", NameOf(key)), kPartBytesMax));
  return DecodePart(bytes);
}

absl::Status CorpusParts::Write(const CorpusPart& part) {
  const Key key = KeyOf(part);
  std::string bytes = EncodePart(part);
  if (!folder_.empty()) {
    CKV_RETURN_IF_ERROR(
        WriteSmallFile(files_, absl::StrCat(folder_, "/", kNewName), folder_, NameOf(key), bytes));
    bytes.clear();
  }
  entries_[key] = {{part.corpus.version, part.folder_id}, std::move(bytes)};
  return absl::OkStatus();
}

absl::Status CorpusParts::Remove(const Key& key) {
  if (entries_.erase(key) == 0 || folder_.empty()) return absl::OkStatus();
  const absl::Status removed = files_.Remove(absl::StrCat(folder_, "/", NameOf(key)));
  CKV_RETURN_IF_ERROR(absl::IsNotFound(removed) ? absl::OkStatus() : removed);
  return files_.SyncFolder(folder_);
}

}  // namespace ckv
