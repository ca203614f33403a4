// The options of a corpus' policy: --ttl, --quota and --keep-versions.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "client/tools/ctl/output.h"
#include "proto/corpus.h"

namespace ckv::ctl {

// Values of the options; unset ones leave what the corpus has.
struct PolicyOptions {
  std::optional<std::string> ttl;
  std::optional<std::string> quota;
  std::optional<uint32_t> kept_version_count;
};

// `options` must live as long as `verb`.
void AddPolicyOptions(CLI::App& verb, PolicyOptions& options);

CorpusPolicy PolicyFrom(const PolicyOptions& options);

// The policy as text and as JSON: "expires in 12 d, quota 4.0 GiB, keeps 2 earlier versions", or
// "-" if it says nothing. `now_ms` is the wall clock in milliseconds since 1970.
std::string PolicyText(const CorpusPolicy& policy, uint64_t now_ms);
Json PolicyJson(const CorpusPolicy& policy);

}  // namespace ckv::ctl
