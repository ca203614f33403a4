// A folder for the files of one test process, removed when it ends.

#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "proto/base/status.h"

namespace ckv::test {

// The path of `name` in it. Fixed names would be shared by two runs of the tests at once.
inline std::string TempPath(const std::string& name) {
  struct Folder {
    Folder() { CKV_CHECK(mkdtemp(path.data()) != nullptr); }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
    std::string path = testing::TempDir() + "/ckv_test.XXXXXX";
  };
  static const Folder folder;
  return folder.path + "/" + name;
}

}  // namespace ckv::test
