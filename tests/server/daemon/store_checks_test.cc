// Goal: a directory has one place for its state, and a process that is not a directory has none.

#include "server/daemon/store_checks.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ckv {
namespace {

std::string ErrorOf(std::vector<std::string> roles, const std::string& store,
                    const std::string& path, const std::string& directory) {
  Config config;
  config.role = std::move(roles);
  config.directory_store = store;
  config.directory_path = path;
  config.directory = directory;
  std::vector<std::string> errors;
  CheckDirectoryStore(config, errors);
  return errors.empty() ? "" : errors.front();
}

TEST(StoreChecks, ADirectoryHasOnePlaceForItsState) {
  const std::string store = "etcd://10.0.0.1:2379,10.0.0.2:2379/fleet";
  EXPECT_EQ(ErrorOf({"directory"}, store, "", ""), "");
  EXPECT_EQ(ErrorOf({"directory"}, "", "/d", ""), "");
  EXPECT_EQ(ErrorOf({"directory", "holder"}, store, "", "a:1,b:1"), "");
  EXPECT_EQ(ErrorOf({"holder"}, "", "", "a:1"), "");
  const auto names = [](const std::string& error, const char* what) {
    return error.find(what) != std::string::npos;
  };
  EXPECT_TRUE(names(ErrorOf({"directory"}, store, "/d", ""), "there is a directory.path too"));
  EXPECT_TRUE(names(ErrorOf({"holder"}, store, "", "a:1"), "this process is no directory"));
  EXPECT_TRUE(names(ErrorOf({"holder"}, "", "/d", "a:1"), "this process is no directory"));
  EXPECT_TRUE(names(ErrorOf({"directory", "holder"}, store, "", ""), "the addresses of all"));
  EXPECT_TRUE(names(ErrorOf({"directory"}, "10.0.0.1:2379", "", ""), "etcd://host:port"));
}

}  // namespace
}  // namespace ckv
