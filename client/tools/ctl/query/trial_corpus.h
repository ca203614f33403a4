// A corpus of made-up rows, there for as long as something is measured against it.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/fleet.h"
#include "client/tools/ctl/interrupt.h"
#include "proto/corpus.h"
#include "proto/geometry.h"

namespace ckv::ctl {

struct TrialShape {
  Geometry geometry;
  std::vector<uint32_t> sizes;  // tokens of the chunks on the first holder, not falling
  uint32_t spread_tokens = 0;   // size of one chunk on each holder; 0 is none
  // Bytes of more chunks on the first holder, of all layers together at least. They are as long as
  // the longest of `sizes`.
  uint64_t push_out_bytes = 0;
};

// A corpus on the fleet's live holders, published under a name of this process. It is dropped
// again, with its chunks, at the end, after an error, and when the process is interrupted. A killed
// process leaves it; `ckvctl corpus drop` drops it like any corpus. Its name begins with "trial-".
class TrialCorpus {
 public:
  //   FailedPrecondition  no holder.
  //   ResourceExhausted   a holder has no room for it; says how much is needed.
  //   else the errors of putting and publishing.
  static absl::StatusOr<std::unique_ptr<TrialCorpus>> Put(const Ctl& ctl, Fleet& fleet,
                                                          const TrialShape& shape);
  ~TrialCorpus();
  TrialCorpus(const TrialCorpus&) = delete;
  TrialCorpus& operator=(const TrialCorpus&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<Member>& holders() const { return holders_; }
  // Ordinals of the chunks of each kind, in the order of the shape and of the holders.
  const std::vector<uint32_t>& sizes() const { return sizes_; }
  const std::vector<uint32_t>& push_out() const { return push_out_; }
  const std::vector<uint32_t>& spread() const { return spread_; }

 private:
  explicit TrialCorpus(const Ctl& ctl) : ctl_(ctl) {}
  // Drops what is on the fleet, once; a failure is a warning.
  void Drop();

  const Ctl& ctl_;
  std::string name_;
  std::vector<Member> holders_;
  std::vector<uint32_t> sizes_, push_out_, spread_;
  absl::Mutex drop_mu_;
  // The copies that are on the fleet, or on their way.
  google::protobuf::RepeatedPtrField<v1::ChunkPlacement> placed_ ABSL_GUARDED_BY(drop_mu_);
  std::optional<OnInterrupt> on_interrupt_;
};

}  // namespace ckv::ctl
