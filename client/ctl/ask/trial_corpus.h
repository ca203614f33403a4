// A corpus of made-up rows, there for as long as something is measured against it.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/ctl/ctl.h"
#include "client/ctl/fleet.h"
#include "proto/corpus.h"
#include "proto/geometry.h"

namespace ckv::ctl {

struct TrialShape {
  Geometry geometry;
  std::vector<uint32_t> sizes;  // tokens of the chunks on the first holder, ascending
  uint32_t spread_tokens = 0;   // of one chunk on each holder
};

// Put on the fleet's live holders and published under a name of this process; dropped again, with
// its chunks, at the end. What a killed process leaves is dropped like any corpus, by `ckvctl
// corpus drop`; its name begins with "trial-".
class TrialCorpus {
 public:
  //   FailedPrecondition  no holder.
  //   ResourceExhausted   a holder has no room for it; says how much is needed.
  //   else the errors of putting and publishing.
  static absl::StatusOr<std::unique_ptr<TrialCorpus>> Put(const Ctl& ctl, Fleet& fleet,
                                                          const TrialShape& shape);
  // Drops it; a failure is a warning.
  ~TrialCorpus();
  TrialCorpus(const TrialCorpus&) = delete;
  TrialCorpus& operator=(const TrialCorpus&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<Member>& holders() const { return holders_; }
  // Ordinals of the chunks of each kind, in the order of the shape and of the holders.
  const std::vector<uint32_t>& sizes() const { return sizes_; }
  const std::vector<uint32_t>& spread() const { return spread_; }

 private:
  TrialCorpus(const Ctl& ctl, Fleet& fleet) : ctl_(ctl), fleet_(fleet) {}

  const Ctl& ctl_;
  Fleet& fleet_;
  std::string name_;
  std::vector<Member> holders_;
  std::vector<uint32_t> sizes_, spread_;
  bool published_ = false;
};

}  // namespace ckv::ctl
