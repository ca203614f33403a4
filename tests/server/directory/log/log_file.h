// Corpora, files of bytes and folders for tests of the directory's log.

#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/directory/log/change.h"
#include "store/disk/file_system.h"
#include "tests/support/named_geometry.h"

namespace ckv::test {

// Bytes as a file that is read.
class BytesFile final : public File {
 public:
  explicit BytesFile(std::string bytes) : bytes_(std::move(bytes)) {}
  absl::Status WriteAt(uint64_t, std::span<const std::byte>) override {
    return absl::PermissionDeniedError("read only");
  }
  absl::Status Resize(uint64_t) override { return absl::PermissionDeniedError("read only"); }
  void StartWriteback(uint64_t, uint64_t) override {}
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::Status ReadAt(uint64_t offset, std::span<std::byte> to) override {
    if (offset > bytes_.size() || to.size() > bytes_.size() - offset)
      return absl::DataLossError("it ends before");
    std::memcpy(to.data(), bytes_.data() + offset, to.size());
    return absl::OkStatus();
  }
  absl::StatusOr<uint64_t> Size() override { return bytes_.size(); }

 private:
  const std::string bytes_;
};

inline std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void WriteBytes(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// A corpus of random ids: a chain, or standalone chunks, some of which have other holders.
inline std::shared_ptr<const Corpus> RandomCorpus(const std::string& name, uint64_t version,
                                                  size_t chunk_count, uint32_t seed) {
  std::mt19937 random(seed);
  Corpus corpus;
  corpus.name = name;
  corpus.tenant = seed % 3 == 0 ? "acme" : "";
  corpus.geometry = *NamedGeometry("deepseek-v2-lite");
  corpus.version = version;
  corpus.replica_count = seed % (kReplicaCountMax + 1);
  const bool chain = seed % 2 == 0;
  for (size_t i = 0; i < chunk_count; ++i) {
    ChunkPlacement chunk;
    for (uint8_t& byte : chunk.id.bytes) byte = static_cast<uint8_t>(random());
    if (chain && i > 0) chunk.set_parent(corpus.chunks.back().id);
    if (!chain && i % 5 == 4) chunk.set_parent(corpus.chunks.front().id);
    chunk.token_count = 256 + static_cast<uint32_t>(i % 7);
    if (chain && i > 0)
      chunk.position = corpus.chunks.back().position + corpus.chunks.back().token_count;
    if (!chain && i % 3 == 1) chunk.position = random();
    chunk.mutable_holders() = {{absl::StrCat("holder-", i / 15 % 4)},
                               {absl::StrCat("holder-", 4 + i / 15 % 3)}};
    corpus.chunks.push_back(std::move(chunk));
  }
  return std::make_shared<const Corpus>(std::move(corpus));
}

inline DirectoryChange PublishOf(std::shared_ptr<const Corpus> corpus) {
  DirectoryChange change;
  change.corpus = std::move(corpus);
  return change;
}

inline DirectoryChange DropOf(const Corpus& corpus) {
  DirectoryChange change;
  change.kind = ChangeKind::kDrop;
  change.tenant = corpus.tenant;
  change.name = corpus.name;
  change.version = corpus.version;
  change.number = corpus.version + 1;
  return change;
}

inline DirectoryChange EpochsTo(uint64_t epoch_max) {
  DirectoryChange change;
  change.kind = ChangeKind::kEpochs;
  change.epoch_max = epoch_max;
  return change;
}

// Equal as the log sees them: a corpus by its contents.
inline std::string RecordOf(const DirectoryChange& change) {
  std::string record;
  AppendRecord(change, record);
  return record;
}

// Records of one frame each: corpora, drops, epochs, of one sector and of several.
inline std::vector<std::string> SomeRecords(size_t count = 8) {
  std::vector<std::string> some;
  for (uint32_t i = 0; i < count; ++i) {
    const auto corpus = RandomCorpus(absl::StrCat("c", i), i + 1, i * 5 % 16, i);
    some.push_back(RecordOf(PublishOf(corpus)));
    if (i % 3 == 1) some.push_back(RecordOf(DropOf(*corpus)));
    if (i % 4 == 2) some.push_back(RecordOf(EpochsTo(1000 * i)));
  }
  return some;
}

}  // namespace ckv::test
