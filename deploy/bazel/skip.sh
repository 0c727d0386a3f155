#!/usr/bin/env bash
# A test that cannot run on this machine: says why, in its log and in the XML that tests/count_results.py reads.
# usage: skip.sh NAME REASON
echo "SKIPPED: $2"
cat >"$XML_OUTPUT_FILE" <<XML
<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="${TEST_TARGET:-skip}" tests="1"><testcase name="$1" classname="skip" result="skipped">
<skipped message="$2"/></testcase></testsuite></testsuites>
XML
