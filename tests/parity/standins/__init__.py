"""What the reference's tests import and its source distribution leaves out, written anew."""
