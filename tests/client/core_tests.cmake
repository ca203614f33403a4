# Tests of the requester's core; included by CMakeLists.txt.
ckv_test(predicate_test DEPS ckv_client LABELS unit)
ckv_test(coverage_test DEPS ckv_client LABELS unit)
ckv_test(directory_view_test DEPS ckv_client ckv_server_core LABELS unit)
ckv_test(requester_test DEPS ckv_client ckv_server_core LABELS unit)
ckv_test(requester_fault_test DEPS ckv_client ckv_server_core LABELS unit)
ckv_test(fetch_test DEPS ckv_client ckv_server_core LABELS unit)
