// Reading: one revision is fixed by the first read, and all others are as of it. Parts of a corpus
// are read with it.
//
// Writing: Add turns a change into writes of keys, and Flush applies all of them in one
// transaction. The parts of a long corpus are written before, each in a transaction of its own:
// nothing refers to them until the corpus's key does. Each transaction has two conditions: the
// leader's key is still the fence's, and the sequence is the last one. It writes the next sequence.
// So a transaction that was given up and arrives late is refused, and one that was tried twice is
// applied once: then the refusal shows the sequence of this very transaction.

#include "server/directory/etcd/etcd_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/planted_bug.h"
#include "proto/base/status.h"
#include "server/directory/directory_tables.h"

namespace ckv {
namespace {

absl::Status Named(const absl::Status& status, std::string_view key) {
  return Annotate(status, absl::StrFormat("etcd, key %s", key));
}

absl::Status ReplayRecords(std::string_view record, std::string_view key,
                           absl::FunctionRef<absl::Status(DirectoryChange)> replay) {
  return Named(ReadRecords(record, replay), key);
}

std::string RecordOf(const DirectoryChange& change) {
  std::string record;
  AppendRecord(change, record);
  return record;
}

EtcdWrite Put(std::string key, std::string value) {
  return {.keys = EtcdKeys::One(std::move(key)), .value = std::move(value)};
}
EtcdWrite Delete(EtcdKeys keys) {
  return {.kind = EtcdWrite::Kind::kDelete, .keys = std::move(keys), .value = ""};
}

size_t BytesOf(const EtcdWrite& write) {
  return write.keys.begin.size() + write.keys.end.size() + write.value.size();
}

// Replays a corpus whose key was read at the index's revision.
absl::Status ReplayCorpus(EtcdClient& client, const EtcdLayout& layout, const EtcdPair& pair,
                          Instant deadline, absl::FunctionRef<absl::Status(DirectoryChange)> replay,
                          EtcdIndex& index) {
  const auto corpus = EtcdCorpusValue::Decode(pair.value);
  if (!corpus.ok()) return Named(corpus.status(), pair.key);
  std::string record(corpus->record);
  if (corpus->part_count > 0) {
    uint32_t count = 0;
    const auto take = [&](const EtcdPair& part) {
      record += part.value;
      ++count;
      return absl::OkStatus();
    };
    CKV_RETURN_IF_ERROR(
        client
            .Read(EtcdKeys::Prefix(layout.PartsOf(corpus->version)), index.revision, deadline, take)
            .status());
    if (count != corpus->part_count) {
      return Named(
          absl::DataLossError(absl::StrFormat("%d parts of %d", count, corpus->part_count)),
          pair.key);
    }
    index.parted[pair.key] = corpus->version;
  }
  ++index.corpus_count;
  return ReplayRecords(record, pair.key, replay);
}

}  // namespace

absl::StatusOr<EtcdIndex> ReadEtcdState(EtcdClient& client, const EtcdLayout& layout,
                                        Instant deadline,
                                        absl::FunctionRef<absl::Status(DirectoryChange)> replay) {
  EtcdIndex index;
  const auto read = [&](const EtcdKeys& keys, absl::FunctionRef<absl::Status(EtcdPair)> take) {
    const auto revision = client.Read(keys, index.revision, deadline, take);
    if (revision.ok()) index.revision = *revision;
    return revision.status();
  };
  CKV_RETURN_IF_ERROR(read(EtcdKeys::One(layout.Number()), [&](const EtcdPair& pair) {
    CKV_ASSIGN_OR_RETURN(index.number, DecodeEtcdNumber(pair.value));
    return absl::OkStatus();
  }));
  CKV_RETURN_IF_ERROR(read(EtcdKeys::One(layout.Folder()), [&](const EtcdPair& pair) {
    CKV_ASSIGN_OR_RETURN(index.folder_id, DecodeEtcdNumber(pair.value));
    return absl::OkStatus();
  }));
  CKV_RETURN_IF_ERROR(read(EtcdKeys::One(layout.Sequence()), [&](const EtcdPair& pair) {
    index.sequence = pair.value;
    return absl::OkStatus();
  }));
  DirectoryChange begin;
  begin.kind = ChangeKind::kSnapshotBegin;
  begin.folder_id = index.folder_id;
  begin.version = index.number;
  CKV_RETURN_IF_ERROR(read(EtcdKeys::One(layout.Epochs()), [&](const EtcdPair& pair) {
    return ReplayRecords(pair.value, pair.key, [&](const DirectoryChange& change) {
      begin.epoch_max = change.epoch_max;
      return absl::OkStatus();
    });
  }));
  CKV_RETURN_IF_ERROR(replay(begin));
  const auto replay_pair = [&](const EtcdPair& pair) {
    return ReplayRecords(pair.value, pair.key, [&](DirectoryChange change) {
      if (change.kind == ChangeKind::kForget) index.drops.insert(change.number);
      return replay(std::move(change));
    });
  };
  for (const std::string& prefix : {layout.prefix() + "gap/", layout.Drops(), layout.Tenant(""),
                                    layout.Members(), layout.Drains()})
    CKV_RETURN_IF_ERROR(read(EtcdKeys::Prefix(prefix), replay_pair));
  const auto replay_corpus = [&](const EtcdPair& pair) {
    return ReplayCorpus(client, layout, pair, deadline, replay, index);
  };
  CKV_RETURN_IF_ERROR(read(EtcdKeys::Prefix(layout.Corpora()), replay_corpus));
  std::set<uint64_t> versions;
  for (const auto& [key, version] : index.parted) versions.insert(version);
  const auto find_stray = [&](const EtcdPair& part) {
    CKV_ASSIGN_OR_RETURN(const uint64_t version, layout.VersionOfPart(part.key));
    if (!versions.contains(version)) index.stray_parts.insert(version);
    return absl::OkStatus();
  };
  CKV_RETURN_IF_ERROR(
      client.ReadKeys(EtcdKeys::Prefix(layout.Parts()), index.revision, deadline, find_stray)
          .status());
  return index;
}

EtcdWriter::EtcdWriter(EtcdClient* client, EtcdLayout layout, int64_t fence, EtcdIndex index)
    : client_(*client),
      layout_(std::move(layout)),
      fence_(fence),
      index_(std::move(index)),
      token_(RandomDirectoryId()) {}

void EtcdWriter::DeleteParts(const std::string& corpus_key, std::vector<EtcdWrite>& writes) const {
  const auto parted = index_.parted.find(corpus_key);
  if (parted != index_.parted.end())
    writes.push_back(Delete(EtcdKeys::Prefix(layout_.PartsOf(parted->second))));
}

EtcdWriter::Added EtcdWriter::WritesOf(const DirectoryChange& change) const {
  Added added;
  switch (change.kind) {
    case ChangeKind::kPublish: {
      const Corpus& corpus = *change.corpus;
      added.corpus_key = layout_.Corpus(corpus.tenant, corpus.name);
      added.version = corpus.version;
      const std::string record = RecordOf(change);
      EtcdCorpusValue value = {.version = corpus.version, .part_count = 0, .record = record};
      if (record.size() > kEtcdPartBytes) {
        for (size_t at = 0; at < record.size(); at += kEtcdPartBytes)
          added.parts.push_back(record.substr(at, kEtcdPartBytes));
        value.part_count = static_cast<uint32_t>(added.parts.size());
        value.record = {};
      }
      DeleteParts(added.corpus_key, added.writes);
      added.writes.push_back(Put(added.corpus_key, value.Encode()));
      break;
    }
    case ChangeKind::kDrop:
    case ChangeKind::kForget: {
      DirectoryChange tombstone = change;
      tombstone.kind = ChangeKind::kForget;
      tombstone.removed_version = 0;
      if (change.kind == ChangeKind::kDrop) tombstone.folder_id = index_.folder_id;
      added.drop = change.number;
      added.corpus_key = layout_.Corpus(change.tenant, change.name);
      added.removes = change.kind == ChangeKind::kDrop || change.removed_version != 0;
      added.writes.push_back(Put(layout_.Drop(change.number), RecordOf(tombstone)));
      if (!added.removes) break;
      DeleteParts(added.corpus_key, added.writes);
      added.writes.push_back(Delete(EtcdKeys::One(added.corpus_key)));
      break;
    }
    case ChangeKind::kEpochs:
      added.writes.push_back(Put(layout_.Epochs(), RecordOf(change)));
      break;
    case ChangeKind::kGap:
      added.writes.push_back(Put(layout_.Gap(change.gap.after), RecordOf(change)));
      break;
    case ChangeKind::kTenantKey:
      added.writes.push_back(Put(layout_.Tenant(change.tenant), RecordOf(change)));
      break;
    case ChangeKind::kMember:
      added.writes.push_back(Put(layout_.Member(change.member.id.name), RecordOf(change)));
      break;
    case ChangeKind::kMemberGone:
      added.writes.push_back(Delete(EtcdKeys::One(layout_.Member(change.member.id.name))));
      break;
    case ChangeKind::kDrain:
      added.writes.push_back(change.drains ? Put(layout_.Drain(change.holder), RecordOf(change))
                                           : Delete(EtcdKeys::One(layout_.Drain(change.holder))));
      break;
    default:
      CKV_CHECK(false);  // records of the log itself are never submitted
  }
  return added;
}

bool EtcdWriter::Add(const DirectoryChange& change) {
  // A long corpus is alone in its batch, so that its parts are tried again with it.
  if (!batch_.empty() && !batch_.back().parts.empty()) return false;
  Added added = WritesOf(change);
  size_t bytes = 0;
  for (const EtcdWrite& write : added.writes) bytes += BytesOf(write);
  if (!batch_.empty()) {
    const bool repeats =
        std::any_of(added.writes.begin(), added.writes.end(),
                    [&](const EtcdWrite& write) { return batch_keys_.contains(write.keys.begin); });
    // Beside these: the sequence, the number, and a tombstone that goes.
    const bool is_full = batch_writes_ + added.writes.size() + 3 > EtcdClient::kWriteCountMax ||
                         batch_bytes_ + bytes > EtcdClient::kTransactionBytesMax;
    if (repeats || is_full || !added.parts.empty()) return false;
  }
  for (const EtcdWrite& write : added.writes) batch_keys_.insert(write.keys.begin);
  batch_bytes_ += bytes;
  batch_writes_ += added.writes.size();
  batch_number_ = std::max({batch_number_, added.version, change.number, change.gap.until});
  batch_.push_back(std::move(added));
  return true;
}

EtcdWriter::End EtcdWriter::Flush(Instant deadline, absl::Status& status) {
  CKV_CHECK(!batch_.empty());
  End end = End::kApplied;
  const Added& first = batch_.front();
  while (parts_written_ < first.parts.size()) {
    const auto index = static_cast<uint32_t>(parts_written_);
    end = Apply({Put(layout_.Part(first.version, index), first.parts[index])}, deadline, status);
    if (end != End::kApplied) break;
    ++parts_written_;
  }
  if (end == End::kApplied) {
    std::vector<EtcdWrite> writes;
    size_t drop_count = index_.drops.size();
    auto oldest = index_.drops.begin();
    for (const Added& added : batch_) {
      writes.insert(writes.end(), added.writes.begin(), added.writes.end());
      if (added.drop == 0 || ++drop_count <= DirectoryTables::kDropsCountMax) continue;
      if (oldest != index_.drops.end())
        writes.push_back(Delete(EtcdKeys::One(layout_.Drop(*oldest++))));
    }
    if (batch_number_ > index_.number)
      writes.push_back(Put(layout_.Number(), EncodeEtcdNumber(batch_number_)));
    end = Apply(std::move(writes), deadline, status);
  }
  if (end == End::kUnknown) return end;
  if (end == End::kApplied) {
    for (const Added& added : batch_) NoteApplied(added);
    index_.number = std::max(index_.number, batch_number_);
  } else if (parts_written_ > 0) {
    index_.stray_parts.insert(first.version);
  }
  batch_.clear();
  batch_keys_.clear();
  batch_bytes_ = batch_writes_ = parts_written_ = 0;
  batch_number_ = 0;
  return end;
}

void EtcdWriter::NoteApplied(const Added& added) {
  if (!added.corpus_key.empty() && (added.version != 0 || added.removes))
    index_.parted.erase(added.corpus_key);
  if (!added.parts.empty()) index_.parted[added.corpus_key] = added.version;
  if (added.drop == 0) return;
  index_.drops.insert(added.drop);
  if (index_.drops.size() > DirectoryTables::kDropsCountMax)
    index_.drops.erase(index_.drops.begin());
}

EtcdWriter::End EtcdWriter::Begin(uint64_t folder_id, Instant deadline, absl::Status& status) {
  std::vector<EtcdWrite> writes;
  if (index_.folder_id == 0) writes.push_back(Put(layout_.Folder(), EncodeEtcdNumber(folder_id)));
  for (const uint64_t version : index_.stray_parts) {
    if (writes.size() + 2 > EtcdClient::kWriteCountMax) break;  // the next leader deletes the rest
    writes.push_back(Delete(EtcdKeys::Prefix(layout_.PartsOf(version))));
  }
  const End end = Apply(std::move(writes), deadline, status);
  if (end != End::kApplied) return end;
  if (index_.folder_id == 0) index_.folder_id = folder_id;
  index_.stray_parts.clear();
  return end;
}

void EtcdWriter::Compact(Instant deadline) {
  if (written_bytes_ < kCompactBytes && written_count_ < kCompactWriteCount) return;
  if (!client_.Compact(index_.revision, deadline).ok()) return;
  written_bytes_ = 0;
  written_count_ = 0;
}

EtcdWriter::End EtcdWriter::Apply(std::vector<EtcdWrite> writes, Instant deadline,
                                  absl::Status& status) {
  const std::string sequence = EncodeEtcdNumber(static_cast<uint64_t>(fence_)) +
                               EncodeEtcdNumber(sequence_number_ + 1) + EncodeEtcdNumber(token_);
  EtcdTransaction transaction;
  transaction.conditions.push_back({.of = EtcdCondition::Of::kCreateRevision,
                                    .key = layout_.Leader(),
                                    .revision = fence_,
                                    .value = ""});
  if (index_.sequence.empty()) {
    transaction.conditions.push_back({.of = EtcdCondition::Of::kCreateRevision,
                                      .key = layout_.Sequence(),
                                      .revision = 0,
                                      .value = ""});
  } else {
    transaction.conditions.push_back({.of = EtcdCondition::Of::kValue,
                                      .key = layout_.Sequence(),
                                      .revision = 0,
                                      .value = index_.sequence});
  }
  if (CKV_PLANTED_BUG("ended-lead")) transaction.conditions.clear();
  for (const EtcdWrite& write : writes) written_bytes_ += BytesOf(write);
  written_count_ += writes.size();
  transaction.writes = std::move(writes);
  transaction.writes.push_back(Put(layout_.Sequence(), sequence));
  transaction.reads_if_refused = {EtcdKeys::One(layout_.Sequence())};
  const auto outcome = client_.Commit(transaction, deadline);
  if (!outcome.ok()) {
    status = outcome.status();
    const bool is_unknown = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    return is_unknown ? End::kUnknown : End::kRefused;
  }
  // A refusal that shows this transaction's own sequence: an earlier try was applied.
  const bool was_applied =
      outcome->applied || (!outcome->read.empty() && outcome->read[0].value == sequence);
  if (!was_applied) {
    status = absl::UnavailableError("another directory leads, or has led since");
    return End::kLost;
  }
  index_.sequence = sequence;
  index_.revision = outcome->revision;
  ++sequence_number_;
  return End::kApplied;
}

}  // namespace ckv
