#include "server/daemon/store_checks.h"

#include "absl/strings/str_format.h"
#include "server/directory/etcd/etcd_store.h"

namespace ckv {

void CheckDirectoryStore(const Config& config, std::vector<std::string>& errors) {
  if (!config.directory_path.empty() && !config.HasRole("directory")) {
    errors.emplace_back(
        "directory.path: this process is no directory: take it out, or add the role");
  }
  if (config.directory_store.empty()) return;
  if (const auto store = EtcdStore::Parse(config.directory_store); !store.ok())
    errors.push_back(absl::StrFormat("directory.store: %s", std::string(store.status().message())));
  if (!config.directory_path.empty()) {
    errors.emplace_back(
        "directory.store: there is a directory.path too: take one of them out (ckvctl directory "
        "export and import move a fleet from one to the other)");
  }
  if (!config.HasRole("directory")) {
    errors.emplace_back(
        "directory.store: this process is no directory: take it out, or add the role");
  } else if (config.directory.empty() &&
             (config.HasRole("holder") || config.HasRole("requester"))) {
    errors.emplace_back(
        "directory: of several directories another may lead: give the addresses of all by "
        "--directory host:port,host:port");
  }
}

}  // namespace ckv
