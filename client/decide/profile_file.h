// The constants of a calibration as a JSON file. `ckvctl calibrate` writes it. People, programs and
// requesters (RequesterOptions::profile) read it.
//
// A profile belongs to the widths of one geometry, one host and its kernel target, which its
// `subject` names. Requesters use it only if all are theirs: see WhyNotOf. The cost of prefill is
// of one model alone: see HereFor.

#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/target/target_choice.h"
#include "client/decide/profile.h"
#include "proto/geometry.h"
#include "proto/kernel_target.h"

namespace ckv {

// The constants of one holder over one fabric.
struct LaneProfile {
  std::string holder;
  std::string fabric;  // "shm", "tcp", "verbs"
  FabricConstants constants;
  ComputeCurve compute = {};
  double wire_share = 0;    // Candidate::wire_share
  double splice_share = 1;  // Candidate::splice_share
  // The holder's. If it is unknown, as in files that do not say it, any is taken for it.
  KernelTargetId kernel_target = KernelTargetId::kUnknown;

  friend bool operator==(const LaneProfile&, const LaneProfile&) = default;
};

struct Profile {
  // Says in words what was measured, as SubjectOf writes it. Its constants apply to nothing else.
  std::string subject;
  RequesterConstants here;
  KernelTargetId kernel_target = KernelTargetId::kUnknown;  // the target of `here`; may be unknown
  std::vector<LaneProfile> lanes;
  // The choice of a kernel target that was made where the profile was, for the next start there
  // (kernel_choice.h). It counts as long as the machine is the same, booted again or not.
  std::optional<KernelRecord> kernel = {};

  // Returns the lane of this holder and fabric, or null.
  const LaneProfile* Find(std::string_view holder, std::string_view fabric) const;
};

// Returns "GEOMETRY from HOST to HOLDERS, quick". GEOMETRY is Geometry::ToString(), HOST the first
// 12 characters of `host_identity`. HOLDERS are the holders' names, separated by blanks. The last
// word is "quick" or "full".
std::string SubjectOf(const Geometry& geometry, std::string_view host_identity,
                      std::span<const std::string> holders, bool quick);

// Returns an empty string if `profile` is for corpora of `geometry` on the host of `host_identity`
// (HostIdentity(), transport/fabric.h) with kernels of `target`. Otherwise it returns the reason
// for people, which says whether the host is at fault. The parts compare so:
//   geometry  Widths and dtype must be the same, letter for letter as SubjectOf writes them:
//             "x576 (512+64) bf16 ". All constants are of one layer, so layers, model, RoPE and
//             scales may differ: no time depends on them, but that of prefill.
//   host      Must be the same boot of the same machine. After a reboot, calibrate again.
//   target    Must be the same, unless the profile does not say it.
//   holders   Are not compared. Nothing is used for a holder that the profile does not name.
std::string WhyNotOf(const Profile& profile, const Geometry& geometry,
                     std::string_view host_identity, KernelTargetId target);
// Returns profile.here, without the cost of prefill if that was measured on another model or
// revision than `geometry`'s.
RequesterConstants HereFor(const Profile& profile, const Geometry& geometry);
// Checks the host alone, if no geometry is known yet: " from HOST to " must stand in the subject.
std::string WhyNotFrom(const Profile& profile, std::string_view host_identity);

// Writes JSON indented by two spaces. The name of every constant ends in its unit.
std::string FormatProfile(const Profile& profile);
// Reads what FormatProfile writes, and what earlier versions of it wrote. A file without a version
// is one of version 1, whose curves have no floor: they are read with a floor of 0. If
// here.splice_per_layer_us is missing, it is 0; if here.prefill_per_token_layer_us is missing, it
// is unset.
//   InvalidArgument     the text is not JSON, or a field is missing, has another type, or is
//                       negative or not finite. A shown share above 1, a later version, more than
//                       kProfileLaneCountMax lanes or ComputeCurve::kAnchorCountMax anchors are
//                       refused too. Names the field.
absl::StatusOr<Profile> ParseProfile(std::string_view text);
inline constexpr size_t kProfileLaneCountMax = 4096;

// Writes the file as an OutputFile does (store/formats/output_file.h), whatever `path` is.
//   Errors as OutputFile.
absl::Status WriteProfile(const std::string& path, const Profile& profile);
// Reads and parses the file.
//   NotFound            there is no file at `path`.
//   InvalidArgument     as ParseProfile, with the path.
absl::StatusOr<Profile> ReadProfile(const std::string& path);

}  // namespace ckv
