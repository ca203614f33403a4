#include "server/directory/etcd/etcd_store.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "proto/base/host_port.h"
#include "proto/base/status.h"
#include "proto/corpus.h"

namespace ckv {
namespace {

constexpr std::string_view kEtcdScheme = "etcd://";

}  // namespace

absl::StatusOr<EtcdStore> EtcdStore::Parse(std::string_view text) {
  constexpr char kForm[] = "etcd://host:port[,host:port...][/name]";
  if (!text.starts_with(kEtcdScheme))
    return absl::InvalidArgumentError(absl::StrFormat("'%s': %s", text, kForm));
  text.remove_prefix(kEtcdScheme.size());
  const size_t slash = text.find('/');
  const std::string_view name = slash == text.npos ? "ckv" : text.substr(slash + 1);
  if (name.empty())
    return absl::InvalidArgumentError(absl::StrFormat("no name after '/': %s", kForm));
  CKV_RETURN_IF_ERROR(ValidateName("name", name));
  EtcdStore store;
  store.prefix = absl::StrFormat("/%s/", name);
  for (const absl::string_view endpoint :
       absl::StrSplit(absl::string_view(text.data(), std::min(slash, text.size())), ',')) {
    CKV_ASSIGN_OR_RETURN(const HostPort parsed, HostPort::Parse({endpoint.data(), endpoint.size()},
                                                                /*port_min=*/1));
    store.endpoints.push_back(parsed.ToString());
  }
  if (store.endpoints.size() > kEndpointCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d members of etcd, limit %d", store.endpoints.size(), kEndpointCountMax));
  }
  return store;
}

}  // namespace ckv
