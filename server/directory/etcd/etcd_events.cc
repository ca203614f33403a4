// The events of one transaction are taken together: the deletion of a corpus's key and the new
// tombstone are one drop. Transaction::Take has a branch for each kind of key.

#include "server/directory/etcd/etcd_events.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

using Kind = EtcdLayout::Kind;

absl::Status OfKey(const absl::Status& status, std::string_view key) {
  return Annotate(status, absl::StrFormat("etcd, key %s", key));
}

class Transaction {
 public:
  Transaction(const EtcdLayout& layout, ReadEtcdParts read_parts,
              absl::FunctionRef<void(const DirectoryChange&)> mirror, EtcdIndex& index)
      : layout_(layout), read_parts_(read_parts), mirror_(mirror), index_(index) {}

  absl::Status Take(std::span<const EtcdEvent> events) {
    for (const EtcdEvent& event : events) {
      const bool is_drop = event.is_delete && layout_.KindOf(event.pair.key) == Kind::kCorpus;
      if (is_drop) dropped_.insert(event.pair.key);
    }
    for (const EtcdEvent& event : events) {
      const std::optional<Kind> kind = layout_.KindOf(event.pair.key);
      if (!kind) continue;
      const absl::Status status =
          event.is_delete ? TakeDelete(*kind, event.pair.key) : TakePut(*kind, event.pair);
      if (!status.ok()) return OfKey(status, event.pair.key);
    }
    if (dropped_.empty()) return absl::OkStatus();
    return OfKey(absl::OutOfRangeError("a corpus was deleted without a tombstone"),
                 *dropped_.begin());
  }

 private:
  absl::Status TakeDelete(Kind kind, const std::string& key) {
    switch (kind) {
      case Kind::kLeader:
      case Kind::kCorpus:  // with its tombstone
        return absl::OkStatus();
      case Kind::kMember: {
        DirectoryChange gone;
        gone.kind = ChangeKind::kMemberGone;
        gone.member.id.name = key.substr(layout_.Members().size());
        mirror_(gone);
        return absl::OkStatus();
      }
      case Kind::kDrain: {
        DirectoryChange ended;
        ended.kind = ChangeKind::kDrain;
        ended.holder = key.substr(layout_.Drains().size());
        mirror_(ended);
        return absl::OkStatus();
      }
      case Kind::kDrop: {
        uint64_t number = 0;
        const auto digits = absl::string_view(key).substr(layout_.Drops().size());
        if (absl::SimpleHexAtoi(digits, &number)) index_.drops.erase(number);
        return absl::OkStatus();
      }
      case Kind::kPart: {
        CKV_ASSIGN_OR_RETURN(const uint64_t version, layout_.VersionOfPart(key));
        index_.stray_parts.erase(version);
        return absl::OkStatus();
      }
      default:
        return absl::OutOfRangeError("it was deleted");
    }
  }

  absl::Status TakePut(Kind kind, const EtcdPair& pair) {
    switch (kind) {
      case Kind::kLeader:
        return absl::OkStatus();
      case Kind::kSequence:
        index_.sequence = pair.value;
        return absl::OkStatus();
      case Kind::kFolder: {
        CKV_ASSIGN_OR_RETURN(index_.folder_id, DecodeEtcdNumber(pair.value));
        return absl::OkStatus();
      }
      case Kind::kNumber: {
        CKV_ASSIGN_OR_RETURN(index_.number, DecodeEtcdNumber(pair.value));
        DirectoryChange number;
        number.kind = ChangeKind::kSnapshotBegin;
        number.version = index_.number;
        mirror_(number);
        return absl::OkStatus();
      }
      case Kind::kDrop:
        return TakeDrop(pair);
      case Kind::kCorpus:
        return TakeCorpus(pair);
      case Kind::kPart: {
        // Until a corpus has it.
        CKV_ASSIGN_OR_RETURN(const uint64_t version, layout_.VersionOfPart(pair.key));
        index_.stray_parts.insert(version);
        return absl::OkStatus();
      }
      default:
        return ReadRecords(pair.value, [&](const DirectoryChange& change) {
          mirror_(change);
          return absl::OkStatus();
        });
    }
  }

  absl::Status TakeDrop(const EtcdPair& pair) {
    return ReadRecords(pair.value, [&](DirectoryChange drop) {
      const std::string key = layout_.Corpus(drop.tenant, drop.name);
      if (dropped_.erase(key) > 0) {
        drop.removed_version = std::max<uint64_t>(drop.version, 1);
        index_.parted.erase(key);
        if (index_.corpus_count > 0) --index_.corpus_count;
      }
      index_.drops.insert(drop.number);
      mirror_(drop);
      return absl::OkStatus();
    });
  }

  absl::Status TakeCorpus(const EtcdPair& pair) {
    CKV_ASSIGN_OR_RETURN(const EtcdCorpusValue value, EtcdCorpusValue::Decode(pair.value));
    std::string record(value.record);
    index_.parted.erase(pair.key);
    if (value.part_count > 0) {
      CKV_ASSIGN_OR_RETURN(record, read_parts_(value.version, value.part_count, pair.mod_revision));
      index_.parted[pair.key] = value.version;
      index_.stray_parts.erase(value.version);
    }
    if (pair.create_revision == pair.mod_revision) ++index_.corpus_count;
    return ReadRecords(record, [&](const DirectoryChange& change) {
      mirror_(change);
      return absl::OkStatus();
    });
  }

  const EtcdLayout& layout_;
  ReadEtcdParts read_parts_;
  absl::FunctionRef<void(const DirectoryChange&)> mirror_;
  EtcdIndex& index_;
  std::set<std::string> dropped_;  // keys of corpora that it deletes, and no tombstone explains yet
};

}  // namespace

absl::Status ApplyEtcdEvents(const EtcdLayout& layout, std::span<const EtcdEvent> events,
                             ReadEtcdParts read_parts,
                             absl::FunctionRef<void(const DirectoryChange&)> mirror,
                             EtcdIndex& index) {
  while (!events.empty()) {
    const int64_t revision = events.front().pair.mod_revision;
    const auto end = std::find_if(events.begin(), events.end(), [&](const EtcdEvent& event) {
      return event.pair.mod_revision != revision;
    });
    const auto count = static_cast<size_t>(end - events.begin());
    CKV_RETURN_IF_ERROR(Transaction(layout, read_parts, mirror, index).Take(events.first(count)));
    index.revision = std::max(index.revision, revision);
    events = events.subspan(count);
  }
  return absl::OkStatus();
}

}  // namespace ckv
