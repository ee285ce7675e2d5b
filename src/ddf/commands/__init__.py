"""The commands of `ddf`, one file each: thin, over the public API, importing what is heavy where it is used."""
