#include "server/directory/log/directory_image.h"

#include "proto/base/status.h"

namespace ckv {

absl::Status ForEachChange(const DirectoryImage& image, uint64_t folder_id,
                           absl::FunctionRef<absl::Status(const DirectoryChange&)> take) {
  DirectoryChange change;
  change.kind = ChangeKind::kSnapshotBegin;
  change.folder_id = folder_id;
  change.version = image.version;
  change.epoch_max = image.epoch_max;
  change.corpus_count = static_cast<uint32_t>(image.corpora.size());
  CKV_RETURN_IF_ERROR(take(change));
  for (const VersionGap& gap : image.gaps) {
    DirectoryChange record;
    record.kind = ChangeKind::kGap;
    record.gap = gap;
    CKV_RETURN_IF_ERROR(take(record));
  }
  for (const DroppedCorpus& dropped : image.dropped) {
    DirectoryChange record;
    record.kind = ChangeKind::kForget;
    record.tenant = dropped.tenant;
    record.name = dropped.name;
    record.folder_id = dropped.folder_id;
    record.version = dropped.version;
    record.number = dropped.number;
    CKV_RETURN_IF_ERROR(take(record));
  }
  for (const auto& [tenant, key] : image.keys) {
    DirectoryChange record;
    record.kind = ChangeKind::kTenantKey;
    record.tenant = tenant;
    record.key = key;
    CKV_RETURN_IF_ERROR(take(record));
  }
  for (const HolderId& holder : image.draining) {
    DirectoryChange record;
    record.kind = ChangeKind::kDrain;
    record.holder = holder.name;
    record.drains = true;
    CKV_RETURN_IF_ERROR(take(record));
  }
  for (const std::shared_ptr<const Corpus>& corpus : image.corpora) {
    DirectoryChange publish;
    publish.corpus = corpus;
    CKV_RETURN_IF_ERROR(take(publish));
  }
  change.kind = ChangeKind::kSnapshotEnd;
  return take(change);
}

}  // namespace ckv
